"""Numbers, units and labels of a line, as parsed by the host and by a trial."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.number_parser import converted, fields, label_names_speed, redraws_as_lines, unit_of, words

SEPARATORS = st.sampled_from([",", "_", "'", " ", "\u2009", "\u202f", "\u00a0"])
FORMS = st.sampled_from(
    [
        "throughput: {} img/s",
        "Speed = {} samples/sec loss: 0.5",
        "'tokens_per_sec': {}, 'loss': 0.5",
        "step 3 | tok/s: {} | lr 0.1",
    ]
)


def speed(line):
    (found,) = [one for one in fields(line) if label_names_speed(words(one.label))]
    assert not found.unclear
    return found.value


@given(st.floats(0.01, 1e9), st.integers(0, 3), SEPARATORS, FORMS)
def test_a_number_with_any_separator_reads_back_to_its_value(value, digits, separator, form):
    assert speed(form.format(f"{value:,.{digits}f}".replace(",", separator))) == float(f"{value:.{digits}f}")


@given(
    st.floats(1.0, 999.0), st.sampled_from([("K", 1e3), ("k", 1e3), ("M", 1e6), ("G", 1e9)]), st.sampled_from(["", " "])
)
def test_a_number_with_a_factor_reads_back_to_its_value(value, factor, gap):
    line = f"throughput: {value:.2f}{gap}{factor[0]} tokens/s"
    assert speed(line) == pytest.approx(float(f"{value:.2f}") * factor[1])


@given(st.floats(1e-9, 1e12), st.integers(0, 6), FORMS)
def test_a_number_with_an_exponent_reads_back_to_its_value(value, digits, form):
    assert speed(form.format(f"{value:.{digits}e}")) == float(f"{value:.{digits}e}")


@given(st.text(max_size=200))
def test_any_line_is_read_without_an_error(line):
    for one in fields(line):
        assert 0 <= one.start < one.end <= one.unit_end <= len(line)


@pytest.mark.parametrize(
    ("text", "kind", "scale", "per"),
    [
        ("img/s", "rate", 1, "img"),
        ("samples per second", "rate", 1, "samples"),
        ("samples/min", "rate", 1 / 60, "samples"),
        ("FPS", "rate", 1, "frame"),
        ("TFLOP/s/GPU", "rate", 1e12, "flop"),
        ("MiB/s", "rate", 2**20, "byte"),
        ("ms/it", "time", 1e-3, "it"),
        ("seconds per epoch", "time", 1, "epoch"),
        ("\u00b5s", "time", 1e-6, ""),
        ("GB", "size", 1e9, "byte"),
    ],
)
def test_a_unit_has_a_direction_and_a_scale(text, kind, scale, per):
    unit = unit_of(text)
    assert (unit.kind, unit.scale, unit.per) == (kind, pytest.approx(scale), per)


@pytest.mark.parametrize(
    ("line", "wanted", "better", "value"),
    [
        ("2.00 s/it", "it/s", "higher", 0.5),
        ("2.00 s/it", "", "higher", 0.5),
        ("2.00 s/it", "", "lower", 2.0),
        ("2.00 it/s", "", "lower", 0.5),
        ("2.00 s", "", "higher", 2.0),
        ("512 MB", "B", "lower", 512e6),
        ("1.5 s", "ms", "lower", 1500),
        ("12.5", "ms", "lower", 12.5),
        ("120 samples/min", "samples/s", "higher", 2.0),
        ("12.3K img/s", "images/s", "higher", 12300),
    ],
)
def test_a_number_is_converted_to_the_unit_that_is_wanted(line, wanted, better, value):
    assert converted(fields(line)[0], wanted, better) == pytest.approx(value)


@pytest.mark.parametrize(("line", "wanted"), [("12 MB", "s"), ("12 s", "B"), ("0 s/it", "it/s")])
def test_units_that_do_not_go_together_are_refused(line, wanted):
    with pytest.raises(ValueError, match="printed"):
        converted(fields(line)[0], wanted, "higher")


def test_a_line_that_is_drawn_again_is_lines_without_colours():
    assert redraws_as_lines("\x1b[31ma\x1b[0m\r\nb 1/2\rb 2/2\x1b[K\nc\x08\x08d") == "a\nb 1/2\nb 2/2\nc\nd"
