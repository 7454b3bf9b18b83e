"""Operations by class, as this project counts them and as other tools count the same equations."""
