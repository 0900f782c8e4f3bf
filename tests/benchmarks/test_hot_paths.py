from benchmarks import hot_paths


def test_rounds_give_medians_and_extremes(monkeypatch):
    seen = iter(range(100))

    def path(fast):
        i = next(seen) // 4  # four paths a round
        ratios = {"b": {"x": [3.0, 1.0, 9.0, 2.0, 5.0][i]}, "a": {"x": 7.0}}
        return {"seconds": i, "ratios": ratios}

    for name in ("_descent", "_noise", "_draws", "_seeds"):
        monkeypatch.setattr(hot_paths, name, path)
    result = hot_paths.run(fast=False, data=None)
    assert result["rounds"] == 5
    for name in ("descent", "noise", "draws", "seeds"):
        assert result[name]["ratios"] == {"b": {"x": 3.0}, "a": {"x": 7.0}}
        assert result[name]["lowest"]["b"] == {"x": 1.0}
        assert result[name]["highest"]["b"] == {"x": 9.0}
        assert result[name]["seconds"] == 4
    cells = hot_paths._cells(result["draws"])
    assert list(cells) == ["b", "a"]
    assert cells["b"]["x"] == "3 (1 to 9)"
