"""Is a mistake in a user's equations reported in one sentence with file, line and name?

Each case is one wrong line in a file that is right without it. What is said has no word of Python's
own: it names the array or index, and what to write instead.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import cli

FILE = """import math
from fractions import Fraction
import numpy as np
import costmodel as cm
from costmodel.language.macros.gates import gelu_tanh
from costmodel.language.macros.norms import l2_norm, layer_norm, rms_norm
from costmodel.language.macros.positions import rotary, short_convolution
from costmodel.language.options import offering
o = cm.Mixer("other-NAME")
r, = o.sizes("r")
u, v = o.input("u", r), o.output("v", r)
with o.form("direct") as g:
    p, k = g.index("p", 1, r), g.index("i", 1, r)
    z = g.array("z", r)
    z[p] = u[p]
    v[p] = z[p]
m = cm.Mixer("NAME")
l, d, w = m.sizes("l d w")
x, y = m.input("x", l, d), m.output("y", l, d)
W, c, A = m.parameter("W", d, d), m.parameter("c", w), m.parameter("A", d, 2)
DECLARED
with m.form("direct") as f:
    i, j = f.index("i", 1, l), f.index("j", 1, l)
    a, b, e = f.index("a", 1, d), f.index("b", 1, d), f.index("e", 1, w)
    one, rest, t = f.index("one", 1, 1), f.index("rest", 2, l), f.index("t", 1, 2)
    s, q = f.array("s", l, l), f.array("q", l, d)
    at = f.array("at", l, below=l)
    WRITTEN
    y[i, a] = x[i, a]
"""

DECLARATIONS = {
    # mixers and sizes
    "cm.Mixer()": "name",
    "cm.Mixer('q', 'r', 's')": "Mixer takes name",
    "cm.Mixer(None)": "name must be a string, got nothing",
    "cm.Mixer(3)": "name must be a string, got the number 3",
    "cm.Mixer('')": "is no name of a mixer",
    "cm.Mixer('two words')": "'two words' is no name of a mixer",
    "cm.Mixer('a+b')": "'a+b' is no name of a mixer",
    "cm.Mixer('n' * 10**6)\ncm.Mixer('n ' * 10**6)": "(2,000,000 characters)",
    "cm.Mixer('q', colour='red')": "colour=",
    "cm.Mixer('q', aliases='alias')": "aliases must be a list of strings, got the string 'alias'",
    "cm.Mixer('q', title=3)": "title must be a string",
    "cm.Mixer('q', title='t' * 2001)": "the title of q has 2,001 characters: expected at most",
    "m.sizes()": "sizes takes letters",
    "m.sizes(3)": "letters must be a string",
    "m.sizes('j')": "unknown size 'j'",
    "m.sizes('L')": "declares size 'L'",
    "m.sizes('b')": "declares size 'b'",
    "m.sizes('length')": "unknown size 'length'",
    "l, d = m.sizes('l d n')": "m.sizes('l d n') declares one size for each letter, 3 in all, and "
    "the left side has 2 names: write one name for each letter",
    "l, d, n = m.sizes('l d')": "m.sizes('l d') declares one size for each letter, 2 in all",
    "(l,) = m.sizes('l d')": "2 in all, and the left side has 1 name: write one name for each",
    "m.size('P', 'a', 4); m.size('P', 'b', 4)": "NAME declares size P twice, as a (default 4) and "
    "as b (default 4)",
    "m.size('P', 'a', 4); m.size('P', 'a', 8)": "as a (default 4) and as a (default 8): take ano",
    "m.sizes('N'); m.size('N', 'states', 128)": "as SSM state per channel (default 16) and as stat",
    # arrays
    "m.input()": "input takes name",
    "m.input(None, l)": "name must be a string, got nothing",
    "m.input('two words', l)": "'two words'",
    "m.input('', l)": "'' in",
    "m.input('λ', l)": "'λ'",
    "m.input('1x', l)": "'1x'",
    "m.input('x', l, d)": "array x is declared twice",
    "m.input('x2')": "x2 of",
    "m.input('x2', d, l)": "x2 of",
    "m.input('x2', l, 'd')": "an axis of x2 of NAME: expected a size, an index or a whole number, "
    "got the string 'd'",
    "m.input('x2', l, None)": "got nothing",
    "m.input('x2', l, 2.5)": "x2",
    "m.input('x2', l, float('nan'))": "got the number nan",
    "m.input('x2', l, [d])": "x2 of",
    "m.input('x2', l, (d, d))": "x2 of",
    "m.input('x2', l, np.zeros(3))": "x2 of",
    "m.input('x2', l, 0)": "x2 of",
    "m.input('x2', l, -1)": "x2 of",
    "m.input('x2', l, Fraction(1, 2))": "x2 of",
    "m.input('x2', l, x)": "got the whole array x",
    "m.input('x2', l, r)": "x2 of NAME names the size r, which NAME does not declare",
    "m.input('x2', l, p)": "x2 of NAME has an axis of the index p",
    "m.input('x2', l, True)": "got the value True",
    "m.output('y2', l, d)": "y2 is a second one",
    "m.output('y', l)": "y is declared twice",
    "m.context('x2')": "x2 of",
    "m.context('x2', l, kernel='conv')": "kernel=",
    "m.context('x2', l, d)": "has l rows, as an input has: declare it by m.input(",
    "m.power_of_two('h')": "power_of_two takes a size of the mixer, such as m.power_of_two(l): got "
    "the string 'h'",
    "m.power_of_two(3)": "got the number 3",
    "m.power_of_two(x)": "got the whole array x",
    "m.power_of_two(l - l + 3)": "got 3",
    "m.power_of_two(r)": "power_of_two of NAME names the size r",
    "m.at_most('h', d)": "at_most takes two sizes of the mixer, such as m.at_most(r, h): got the "
    "string 'h'",
    "m.at_most(d, 3)": "got the number 3",
    "m.at_most(r, d)": "at_most of NAME names the size r",
    "m.buffer('P', 2, value=[1.0, 'no'])": "the table of P has the string 'no' at (2), expected a "
    "finite number",
    "m.buffer('P', 2, 2, value=[[1], [1, 2]])": "the table of P has",
    "m.buffer('P', 2, below=l, value=[1, 1.5])": "the number 1.5 at (2), expected a whole number",
    "m.parameter('W')": "W is declared twice",
    "m.parameter('P', d, latex='$ [x](javascript:1) $')": "latex of P is '$ [x](javascript:1) $': "
    "expected a symbol in a formula",
    "m.parameter('P', d, latex='W}')": "with a } for each {",
    "m.parameter('P', d, latex='W' + chr(92))": "expected a symbol in a formula",
    "m.parameter('P', d, latex=3)": "latex must be a string, got the number 3",
    "m.parameter('P', m)": "an axis of P of NAME: expected a size, an index or a whole number, got "
    "the mixer NAME",
    "m.buffer('P', d, below='d')": "P",
    "m.buffer('P', d, below=lambda: d)": "P",
    "m.buffer('P', d, below=2.5)": "P",
    "m.buffer('P', d, value=lambda i: 1.0)": "value= of P is a function of an entry's positions, 1",
    # sizes calculated with
    "m.parameter('P', l / (d + 1))": "cannot divide by d + 1",
    "m.parameter('P', l ** 0.5)": "the power of a size must be a whole number",
    "m.parameter('P', 3 ** l)": "a size in its exponent needs base 2, got",
    "m.parameter('P', l % 2)": "% cannot be applied to the size l",
    "m.parameter('P', math.sqrt(l))": "float cannot be applied to the size l",
    "m.parameter('P', max(l, d))": "> cannot be applied to the size",
    "m.parameter('P', *range(l))": "the size l",
    "m.parameter('P', l // 0)": "divides by a positive integer",
    # forms
    "m.form()": "form takes name",
    "m.form(None)": "name must be a string",
    "m.form('')": "no name of a form",
    "m.form('a form')": "'a form' is no name of a form",
    "m.form('direct').index('i', 1, l)": ".index is called on a form that is not open",
    "x[1, 1] = 1": "x[...] = ... stands outside",
    "x[1, 1] == y[1]": "y has 2 axes",
    "x[p, 1, 1]": "x has 2 axes",
    # options
    "offering()": "offering takes offers",
    "offering('bias')": "@offering takes a table of options, got the string 'bias'",
    "offering({'two words': 'b'})(print)": "'two words'",
    "offering({'a': 'b'}, apart={('a', 'c'): 'd'})(print)": "'c'",
    "offering({'a': 'b'})(3)": "the number 3",
}

EQUATIONS = {
    # names that nothing declares
    "q[i, a] = x[i, a] * N": "nothing above is called N: a size is declared by (N,) = m.sizes('N')",
    "f.array('late', l, cite='(3} [x](javascript:1)')": "cite of late is '(3} [x](javascript:1)': "
    "expected the number of an equation, such as (3) or (15)-(16), of letters, digits, spaces",
    "f.array('late', l, cite='-' * 10**5 + '$')": "late is '--------------------... (100,001",
    "K = f.array('K', l, P)": "a size is declared by P = m.size('P', 'its meaning', 16), an array",
    "K = f.array('K', l, L)": "called L: no size may be called L, an array is declared by",
    "q[i, a] = Key[i, a]": "nothing above is called Key: an array is declared by f.array('Key', l, "
    "d), an index by f.index('Key', 1, l); any other name needs an assignment or import",
    "q[i, a] = gelu_tan(x[i, a])": "gelu_tan (did you mean 'gelu_tanh'?): an array is declared by",
    "q[i, a] = "
    + "y" * 10**4: "nothing above is called yyyyyyyyyyyyyyyyyyyy... (10,000 characters)",
    "f.index('k', 1, Fraction(1, 2))": "a bound of index k is 1/2: expected a whole number",
    "q[i, a] = pow(x[i, a], 2, 3)": "powers are written as products",
    "del q[i, a]": "del cannot be applied to the whole array q",
    # indices
    "f.index()": "index takes name",
    "f.index('k')": "index takes name",
    "f.index('k', 1)": "index k of form 'direct'",
    "f.index('k', 1, 2, 3)": "index takes name",
    "f.index(1, 1, l)": "name must be a string",
    "f.index('k k', 1, l)": "'k k'",
    "f.index('λ', 1, l)": "'λ'",
    "f.index('k', '1', l)": "a bound of index k",
    "f.index('k', None, l)": "a bound of index k",
    "f.index('k', 1.5, l)": "a bound of index k",
    "f.index('k', 1, x)": "a bound of index k: expected a size, an index or a whole number, got "
    "the whole array x",
    "f.index('k', 1, x[i, a])": "got an entry of x",
    "f.index('k', [1], l)": "a bound of index k",
    "f.index('i', 2, l)": "index i of form 'direct' already has another range",
    "f.index('k', 1, r)": "index k of NAME names the size r",
    "f.index('k', 1, p)": "the range of index k names p, which is no index of form 'direct'",
    "f.index('k', cm.min_(1, i), l)": "the lower bound of index k is the bound min_(1, i)",
    "f.index('k', 1, cm.max_(1, i))": "the upper bound of index k is the bound max_(1, i)",
    "f.index('k', cm.max_(), l)": "max_ takes one bound or more",
    "f.index('k', cm.max_('a'), l)": "got the string 'a'",
    "f.index('k', cm.union((1, 2)))": "union takes two or more ranges",
    "f.index('k', cm.union(1, 2))": "union takes two or more ranges",
    "f.index('k', cm.union((1, 2), (3, 'l')))": "a bound of index k",
    "f.index('k', cm.union((1, 2), (4, l)), beside=3)": "beside",
    "f.index('k', cm.union((1, 2), (4, l)), beside=i)": "index k has 2 ranges",
    "f.index('k', 1, d, beside=i)": "index k and i, beside which it is declared, have one range "
    "each: leave out beside=",
    "f.index('k', 1, l, step=2)": "step=",
    "f.index('k', 1, i // 2)": "index k is bounded by floor(i/2)",
    # arrays of a form
    "f.array()": "array takes name",
    "f.array('s', l)": "array s is declared twice",
    "f.array('x', l)": "array x is declared twice",
    "f.array('h', 'l')": "an axis of h of NAME: ",
    "f.array('h', r)": "h of NAME names the size r",
    "f.array('h', i)": "h of NAME has an axis of the index i",
    "f.array('h', l, below='l')": "h",
    "f.array('h', l, cite=2)": "cite must be a string",
    "f.arrray('h', l)": "the form direct has no attribute 'arrray': did you mean 'array'?",
    "q[i, a] = x[i, a].relu()": "an entry of x has no attribute 'relu'",
    # entries
    "q[i] = 1": "q has 2 axes but is indexed with 1",
    "q[i, a, a] = 1": "q has 2 axes but is indexed with 3",
    "q['i', a] = 1": "an index of q: ",
    "q[None, a] = 1": "an index of q: ",
    "q[:, a] = 1": "an index of q: expected a size, an index or a whole number, got a slice",
    "q[..., a] = 1": "an index of q: ",
    "q[1.5, a] = 1": "an index of q: ",
    "q[True, a] = 1": "an index of q: ",
    "q[[1], a] = 1": "an index of q: ",
    "q[Fraction(1, 2), a] = 1": "index '1/2'",
    "q[i, a] = x[i + Fraction(1, 2), a]": "an index of x: ",
    "q[i, a] = x[i * Fraction(1, 2), a]": "an index of x: ",
    "q[x, a] = 1": "got the whole array x",
    "q[i, a] = x[x[i, a], a]": "x of NAME is used as an index, but holds no positions",
    "q[i, a] = x[i * j, a]": "an index of x: ",
    "q[p, a] = 1": "form 'direct' of NAME has no index p",
    "q[p + 1, a] = 1": "form 'direct' of NAME has no index p",
    "q[k, a] = 1": "has another index i: use the i declared in form",
    "q[i, a] = x[p, a]": "form 'direct' of NAME has no index p",
    "q[i, a] = x[p - 1, a]": "index p of x is unbound",
    "q[i, a] = cm.sum_(x[i, a], over=p)": "form 'direct' of NAME has no index p",
    "q[i, a] = u[i]": "u is read by q in form 'direct'",
    "q[i, a] = z[i]": "z is read by q in form 'direct'",
    "q[i, a] = x[i, a] * r": "q of NAME names the size r",
    "z[i] = x[i, a]": "z",
    "v[i] = x[i, 1]": "v",
    "x[i, a] = 1": "x is declared by m.input, and no equation may define it",
    "W[a, b] = 1": "W is declared by m.parameter, and no equation may define",
    "with m.form('second') as other: pass": "form 'second' of NAME begins inside form 'direct'",
    # right sides
    "q[i, a] = None": "the value of q: expected a size, an index or a whole number, got nothing",
    "q[i, a] = 'x'": "got the string 'x'",
    "q[i, a] = 0.5": "the value of q",
    "q[i, a] = x[i, a] * float('nan')": "in an operation on an entry of x: ",
    "q[i, a] = x[i, a] * 10**5000": ": a constant is at most 1.8e+308, got a larger one",
    "q[i, a] = x[0.5 * i, a]": "in an operation on the index i: ",
    "q[i, a] = x": "got the whole array x",
    "q[i, a] = x[i, a] * 'x'": "got the string 'x'",
    "q[i, a] = x[i, a] * x": "got the whole array x",
    "q[i, a] = x[i, a] + None": "got nothing",
    "q[i, a] = [x[i, a]]": "a value of type list",
    "q[i, a] = np.zeros(3)": "a value of type ndarray",
    "q[i, a] = x[i, a] * np.zeros(3)": "a value of type ndarray",
    "q[i, a] = np.exp(x[i, a])": "numpy cannot be applied to an entry of x",
    "q[i, a] = x[i, a].__torch_function__(None, ())": "torch cannot be applied to an entry of x",
    "q[i, a] = x[i // 0, a]": "i // 0: // divides by a positive integer or a size (line",
    "q[i, a] = math.exp(x[i, a])": "float cannot be applied to an entry of x",
    "q[i, a] = x[i, a] ** 2": "powers are written as products",
    "q[i, a] = x[i, a] @ W[a, b]": "@ cannot be applied to an entry of x",
    "q[i, a] = x @ W": "@ cannot be applied to the whole array x",
    "q[i, a] = x * 2": "* cannot be applied to the whole array x",
    "q[i, a] = 2 * x": "* cannot be applied to the whole array x",
    "q[i, a] = x[i, a] % 2": "% cannot be applied to an entry of x",
    "q[i, a] = x[i, a] // 2": "// cannot be applied to an entry of x",
    "q[i, a] = x[i, a][b]": "[...] cannot be applied to an entry of x",
    "q[i, a] = x[i, a](b)": "a call cannot be applied to an entry of x",
    "q[i, a] = abs(x[i, a])": "abs cannot be applied to an entry of x",
    "q[i, a] = max(x[i, a], 0)": "< cannot be applied to an entry of x",
    "q[i, a] = x[i, a] and u[i]": "a choice (and, or, not, if) cannot be applied to an entry of x",
    "q[i, a] = x[i, a] * 2 or u[i]": "a choice (and, or, not, if) cannot be applied to an exp",
    "q[i, a] = 2 if x[i, a] else 1": "f.index('i', 1, l), chooses entries, and cm.maximum takes",
    "q[i, a] = 2 if x[i, a] == u[i] else 1": "== or != cannot be applied to an entry of x",
    "q[i, a] = 2 if 2 * x[i, a] != u[i] else 1": "== or != cannot be applied to an expression",
    "q[i, a] = 2 if i + 1 == j else 1": "== or != cannot be applied to",
    "q[i, a] = x[i, 0 if l == d or x[i, a] in {x[i, a]: 1} else 'a']": "index 0 is 0 on axis 2",
    "q[i, a] = 2 if i == j else 1": "== or != cannot be applied to the index i",
    "q[i, a] = 2 if cm.complex_(A)[a] == 0 else 1": "== or != cannot be applied to a val",
    "q[i, a] = cm.complex_(A)[a] or x[i, a]": "a choice (and, or, not, if) cannot be applied to a",
    "q[i, a] = sum(x[i, a])": "a loop, sum or unpacking cannot be applied to an entry of x",
    "q[i, a] = sum(x)": "a loop, sum or unpacking cannot be applied to the whole array x",
    "q[i, a] = x[i / 2, a]": "sizes; // rounds an index down, i // 2",
    "q[i, a] = x[i > 1, a]": "> cannot be applied to the index i",
    "q[i, a] = x[i, a] / 0": "q: a division by 0",
    "q[i, a] = x[j, a]": "index j of x is unbound",
    # sums and functions
    "q[i, a] = cm.sum_()": "sum_ takes body, over",
    "q[i, a] = cm.sum_(x[i, b])": "sum_ takes body, over",
    "q[i, a] = cm.sum_(x[i, b], b, b)": "sum_ takes body, over",
    "q[i, a] = cm.sum_(x[i, b], over='b')": "'over' takes indices of the form, got the string 'b'",
    "q[i, a] = cm.sum_(x[i, b], over=None)": "got nothing",
    "q[i, a] = cm.sum_(x[i, a], over=())": "'over' takes one index or more, got none",
    "q[i, a] = cm.softmax(x[i, a], over=[])": "'over' takes one index or more, got none",
    "q[i, a] = cm.sum_(x[i, b], over=l)": "got the size l",
    "q[i, a] = cm.sum_(x[i, b], over=(b, b))": "'over' names the index b twice",
    "q[i, a] = cm.sum_(x[i, a], over=a)": "index a is on the left side and reduced over",
    "q[i, a] = cm.sum_(x, over=a)": "got the whole array x",
    "q[i, a] = cm.max_over('x', over=b)": "got the string 'x'",
    "q[i, a] = cm.maximum(x[i, a])": "maximum takes one, other",
    "q[i, a] = cm.function('foo', x[i, a])": "unknown function 'foo'",
    "q[i, a] = cm.function(3, x[i, a])": "name must be a string",
    "q[i, a] = cm.function('n' * 10**6, x[i, a])": "(1,000,000 characters)",
    "q[i, a] = cm.exp(x)": "got the whole array x",
    "q[i, a] = cm.exp()": "exp takes body",
    "q[i, a] = cm.softmax(x[i, a] * 2, over=a)": "softmax takes an entry of an array, got an "
    "expression",
    "q[i, a] = cm.softmax(x[i, b], over=b)": "q: softmax runs over b",
    "q[i, a] = 1 + cm.softmax(x[i, a], over=a)": "q: softmax must be the whole right side",
    "q[i, a] = cm.softmax(x[i, a], over=3)": "got the number 3",
    "q[i, a] = cm.softmax(x[i, a], over=a, sink=c[e] * 2)": "sink of a softmax must be an entry of "
    "an array, got an expression",
    "q[i, a] = cm.scaled(x[i, a], by=0.5)": "a constant must be a whole number",
    "q[i, a] = cm.scaled(x[i, a])": "scaled takes body, by",
    # choices
    "q[i, a] = cm.argmax(x[i, b], over=b)": "q: argmax gives positions: declare",
    "at[i] = x[i, 1]": "at holds positions",
    "at[i] = cm.argmax(x[i, b] * 2, over=b)": "argmax takes an array entry",
    "at[i] = cm.argmax(x[i, b], over=j)": "argmax runs over j, which the entry does not name",
    "at[i] = cm.argmax(x[i, b], over='b')": "over must be an index of the form",
    "at[i] = cm.top_k(x[i, b], over=b)": "at: the left side of top-k needs one index of its own",
    "at[i] = cm.sort(x[i, b])": "sort takes body, over",
    # transforms and complex numbers
    "q[i, a] = cm.rfft(x[i, a] * 2, over=i, length=4)": "rfft takes an array entry",
    "q[i, a] = cm.rfft(x[j, a], over=a, length='l')": "got the string 'l'",
    "q[i, a] = cm.rfft(x[j, a], over=b, length=l)": "rfft runs over b",
    "q[i, a] = cm.irfft(x[j, a], over=j, length=l)": "irfft runs over a pair of indices, got 1",
    "q[i, a] = cm.fft(x[j, a], over=(j, b), length=l)": "fft runs over b",
    "q[i, a] = cm.rfft(x[j, a], over=j, length=0)": "the number of points of rfft",
    "q[i, a] = cm.rfft(x[j, a], over=j, length=d / d * 3 / 2)": "or a whole number of 1 or more, "
    "got 3/2",
    "q[i, a] = cm.complex_(A)[a] / cm.complex_(A)[a]": "write z / w as z * w.conjugate / w.squared",
    "q[i, a] = cm.complex_(A)[a]": "the value of q",
    "q[i, a] = cm.complex_(3)[a].real": "array must be an array, such as",
    "cm.complex_(A)[a, b]": "A has 2 axes",
    "cm.complex_(f.array('S'))": "complex_ of S: the array has no axis -1: expected an axis of "
    "extent 2",
    "cm.complex_(f.array('S', l, 3))": "axis -1 of the array has extent 3: expected an axis of "
    "extent 2, the real part at 1, the imaginary part at 2",
    "cm.complex_(A, axis=0)": "complex_ of A: axis 0 of the array has extent d: expected an axis",
    "cm.complex_(A, axis=7)": "complex_ of A: the array has no axis 7: expected an axis of extent",
    "cm.complex_(A, axis=-3)": "complex_ of A: the array has no axis -3: expected an axis of",
    "cm.complex_pair(q, W)": "complex_pair of q and W: the extents are (l, d) and (d, d): expected "
    "one shape",
    "q[i, a] = cm.complex_pair(q, 3)[i, a].real": "imag must be an array",
    "cm.complex_pair(q, q)[i, a] = x[i, a]": "expected a complex number, got an entry of x",
    "q[i, a] = cm.complex_sum(x[i, b], over=b)": "body must be a complex number",
    # norms and positions
    "q[i, a] = layer_norm(x[i, a])": "layer_norm takes x, over",
    "q[i, a] = layer_norm(x[i, a], over='a')": "'over' takes indices of the form",
    "q[i, a] = layer_norm(x[i, a] * 2, over=a)": "layer_norm takes an entry of an array, got an "
    "expression",
    "q[i, a] = layer_norm(x[i, b], over=b)": "q: layer_norm runs over b",
    "q[i, a] = layer_norm(x[i, a], over=j)": "layer_norm runs over j",
    "q[i, a] = rms_norm(x[i, a], over=a, eps=-1)": "rms_norm",
    "q[i, a] = l2_norm(x[i, a], over=a, gain='g')": "got the string 'g'",
    "q[i, a] = short_convolution(x[i, a], c[e], along=i, taps=j)": "short_convolution",
    "q[i, a] = short_convolution(x, c[e], along=i, taps=e)": "short_convolution",
    "q[i, a] = rotary(x[i, a], over=a, pairs=b, cos=W[1, a], sin=W[1, a])": "rotary turns the d",
    "q[i, a] = rotary(x[i, a], over=a, pairs=b, cos=W[1, a], sin=W[1, a], layout='x')": "'x'",
    "q[i, a] = gelu_tanh(x)": "got the whole array x",
    # what no entry has, and what no order computes
}
LAST = "y[i, a] = x[i, a]"

LASTS = {
    "y[i, a] = x[i, a]\n    q[i, a] = x[i, a]": "q is defined, but the output does not "
    "depend on it",
    "y[i, a] = x[i, a]\n    y[i, a] = x[i, a]": "two equations of y define one entry",
    "y[i, a] = q[i, a]": "y reads q, which no equation defines",
    "y[i, a] = x[i + 1, a]": "y reads x outside its extents (l, d): index i + 1 is 2 on axis 1, "
    "which holds 1..1 (for instance at l = 1",
    "y[i, a] = x[-1, a]": "y reads x outside its extents (l, d)",
    "y[i, a] = x[0, a]": "y reads x outside its extents (l, d)",
    "y[i + 1, a] = x[i, a]": "y is defined outside its extents (l, d): index i + 1 is 2 on axis 1",
    "y[i, a] = x[i, a + w]": "y reads x outside its extents (l, d): index a + w is 2 on axis 2",
    "y[i, a] = x[i, a]\nf.array('late', l)": "array late is declared after form 'direct' of NAME "
    "has ended: declare it inside `with m.form('direct') as f:`",
    "y[i, a] = x[i, a]\nf.index('late', 1, l)": "index late is declared after form 'direct'",
    "y[i, a] = cm.sum(x[j, a], over=j)": "'costmodel' has no attribute 'sum': did you mean 'sum_'?",
    "y[i, a] = y[i, a] + x[i, a]": "y[1, 1] needs y[1, 1]",
    "y[i, a] += x[i, a]": "y[1, 1] needs y[1, 1]",
    "y[one, a] = x[one, a]; y[rest, a] = cm.sum_(y[j, a], over=j)": "y[2, 1] needs y[2, 1]",
    "y[i, a] = cm.softmax(y[i, a], over=a)": "needs y[1, 1]",
    "y[rest, a] = x[rest, a]": "y is not defined everywhere",
}
"""A wrong line: among declarations, among equations, or in place of the last one; what is said."""

PYTHON = re.compile(
    r"Error\b|NoneType|object|argument|subscript|iterable|operand type|dtype|Traceback|"
    r"Poly|Ref\b|Extremum|Ranges|costmodel/|self|ufunc|__"
)
"""Words of Python and of this package's own code."""


def said(name: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a table says of a file, and the file."""
    path = folder / f"{name}.py"
    path.write_text(text.replace("NAME", name), encoding="utf-8")
    assert cli.run(["table", f"{path}:m", "--columns", "mul"]) != 0, "the mistake is accepted"
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    return printed.err, str(path)


CASES = [(line, "DECLARED", words) for line, words in DECLARATIONS.items()]
CASES += [(line, "WRITTEN", words) for line, words in EQUATIONS.items()]
CASES += [(line, LAST, words) for line, words in LASTS.items()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_wrong_line_is_told(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, place, words = CASES[number]
    name = f"wrong-line-{number}"
    begin = FILE.index(place) if place != LAST else FILE.rindex(place)
    text = FILE[:begin] + line + FILE[begin + len(place) :]
    text = text.replace("DECLARED", "").replace("WRITTEN", "pass")
    wrong = FILE[:begin].count("\n") + 1 + line.count("\n")
    sentence, path = said(name, text, tmp_path, capsys)
    assert words.replace("NAME", name) in sentence
    assert path in sentence
    assert re.findall(r"line (\d+)", sentence) == [str(wrong)]
    plain, _, quoted = sentence.removesuffix("`)\n").partition(f" (line {wrong}: `")
    if "does not import" in sentence:  # the line names the array and its indices
        assert quoted[:15] == line.splitlines()[-1].strip()[:15]
    assert not PYTHON.findall(plain.replace(path, ""))
    assert len(sentence) < 600 + len(path)


def test_the_file_is_right_without_a_wrong_line(tmp_path: Path) -> None:
    path = tmp_path / "right.py"
    text = FILE.replace("DECLARED", "").replace("WRITTEN", "pass").replace("NAME", "right")
    path.write_text(text, encoding="utf-8")
    assert cli.run(["table", f"{path}:m", "--columns", "mul"]) == 0


def test_a_form_without_an_output_is_told_at_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FILE.replace("DECLARED", "").replace("WRITTEN", "pass").replace(LAST, "pass")
    sentence, _ = said("no-output", text, tmp_path, capsys)
    line = text.splitlines().index('with m.form("direct") as f:') + 1
    words = (
        "form 'direct' of no-output never defines its output: write an equation with the output on"
    )
    assert f"does not import: {words} the left side (line {line}: `with m.form(" in sentence


def test_a_bound_that_is_a_fraction_is_told_with_its_index_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "k = f.index('k', 1, l/2); y[i, a] = cm.sum_(x[k, a], over=k)"
    text = FILE.replace("DECLARED", "").replace("WRITTEN", "pass").replace(LAST, wrong)
    path = tmp_path / "half.py"
    path.write_text(text, encoding="utf-8")
    assert cli.run(["table", f"{path}:m", "--l", "7"]) == 2
    line = text.splitlines().index(f"    {wrong}") + 1
    assert f"l/2 bounds index k ({path}, line {line})" in capsys.readouterr().err


TWO_AXES = """q[one, a] = x[one, a]
    first, later = f.index("first", 1, 1), f.index("later", 2, d)
    q[rest, first] = x[rest, first]
    q[rest, later] = q[rest - 1, later] + q[rest, later - 1]
    y[i, a] = q[i, a]"""


def test_what_could_not_be_checked_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recurrence along two axes can be computed, and has no formulas: `check` says so and
    fails."""
    text = FILE.replace("DECLARED", "").replace("WRITTEN", "pass").replace(LAST, TWO_AXES)
    path = tmp_path / "open.py"
    path.write_text(text.replace("NAME", "two-axes"), encoding="utf-8")
    assert cli.run(["check", f"{path}:m"]) == 1
    printed = capsys.readouterr()
    assert re.search("well formed +not checked", printed.out)
    assert "could not be checked: q needs itself" in printed.err


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("cm.Mixer('sizes').sizes('l d')", "declares no sizes of its own"),
        ("m.sizes('l d')", ":m needs exactly one input, got none"),
    ],
)
def test_a_mixer_without_sizes_or_an_input_is_refused(
    declared: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"""import costmodel as cm
m = cm.Mixer("NAME")
l, d = {declared}
y = m.output("y", l, d)
with m.form("direct") as f:
    y[f.index("i", 1, l), f.index("a", 1, d)] = 1
"""
    sentence, _ = said("no-whole-mixer", text, tmp_path, capsys)
    assert words in sentence


@pytest.mark.parametrize("sizes", [("--d", "3", "--l", "5"), ("--symbolic",)])
def test_a_malformed_mixer_leaves_the_others_their_rows(
    sizes: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "q[i, a] = q[i, a] + x[i, a]; y[i, a] = q[i, a]"
    text = FILE.replace("DECLARED", "").replace("WRITTEN", "pass").replace(LAST, wrong)
    path = tmp_path / "mine.py"
    path.write_text(text.replace("NAME", "mine"), encoding="utf-8")
    shown = ("--columns", "mixer,mul,parameters", "--format", "json", *sizes)
    assert cli.run(["table", f"{path}:m", "she", *shown]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("costmodel: mine has no values: ") and "q[1, 1]" in printed.err
    for phase in ("training", "inference"):
        mine, she = [r for r in json.loads(printed.out)["rows"] if r["phase"] == phase]
        assert mine["parameters"] is None and "q[1, 1] needs q[1, 1]" in mine["reasons"]["mul"]
        assert she["counts"]["mul"] and she["parameters"]


ASKED: dict[str, tuple[str, tuple[str, ...], str]] = {
    "does-not-import": ("x = = 1", (), "no_equations.py:m has no values: "),
    "ends-the-process": ("raise SystemExit(0)", (), "no_equations.py:m has no values: "),
    "recomputes": ("", ("--phase", "backward", "--recompute", "A"), "he has no values: form 'dir"),
    "form": ("", ("--form", "fft"), "self-attention has no values: self-attention has no form 'f"),
    "sizes": ("", ("--n", "3"), "self-attention has no values: self-attention needs d/n to be "),
}
"""Request -> a file that stands beside the mixers ("" for none), its options, what is said."""


@pytest.mark.parametrize("name", ASKED)
def test_what_one_mixer_lacks_leaves_the_others_their_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, options, words = ASKED[name]
    (tmp_path / "no_equations.py").write_text(text, encoding="utf-8")
    mixers = [f"{tmp_path}/no_equations.py:m"] * bool(text) or ["self-attention"]
    mixers += ["she" if name == "form" else "he"]
    sizes = ("--d", "8", "--l", "5", "--columns", "mixer,mul", "--format", "json")
    phase = () if "--phase" in options else ("--phase", "training")
    assert cli.run(["table", *mixers, *sizes, *phase, *options]) == 1
    printed = capsys.readouterr()
    rows = {row["mixer"]: row for row in json.loads(printed.out)["rows"]}
    assert printed.err.count("\n") == 1 and printed.err.startswith(f"costmodel: {words}")
    lacking = words.partition(" ")[0]
    assert rows[lacking]["counts"]["mul"] is None and rows[lacking]["reasons"]["mul"]
    assert all(row["counts"]["mul"] for mixer, row in rows.items() if mixer != lacking)
    assert cli.run(["table", mixers[name == "recomputes"], *sizes, *phase, *options]) == 2
