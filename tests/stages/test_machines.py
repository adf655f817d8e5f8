"""The machines that a stage's workers decode on."""

from pasta.stages.machines import Machines, read_machines


def machine(date: str, **formats: str) -> dict[str, object]:
    return {"processor": "Abacus 9000", "date": date, "formats": formats}


def test_each_machine_is_kept_once_beside_those_of_earlier_runs(tmp_path, capsys):
    assert read_machines(tmp_path) == []
    first, second = machine("Monday", pasta="float32"), machine("Tuesday", pasta="float32")
    machines = Machines("tiny", tmp_path)
    machines.add(first)
    machines.add(first)
    again = Machines("tiny", tmp_path, read_machines(tmp_path))
    again.add(second)
    assert read_machines(tmp_path) == [first, second]
    assert again.formats() == {"pasta": ["float32"]}
    assert capsys.readouterr().err == ""


def test_another_number_format_than_before_is_said_once(tmp_path, capsys):
    machines = Machines("tiny", tmp_path, [machine("Monday", pasta="float32", twin="float32")])
    machines.add(machine("Tuesday", pasta="bfloat16", twin="float32"))
    machines.add(machine("Wednesday", pasta="float32", twin="float32"))
    assert capsys.readouterr().err == (
        "tiny: workers have taken different number formats for pasta (bfloat16, float32): answers depend on who "
        "decodes them; name one in engine.dtype for the same everywhere\n"
    )
    assert machines.formats() == {"pasta": ["bfloat16", "float32"], "twin": ["float32"]}


def test_machines_without_models_have_no_formats(tmp_path):
    machines = Machines("tiny", tmp_path)
    machines.add({"processor": "Abacus 9000"})
    assert machines.formats() == {}
