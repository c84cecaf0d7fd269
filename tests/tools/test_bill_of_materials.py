"""The bill of materials, and packages pinned by their hashes."""

from importlib.metadata import distributions

from bill_of_materials import missing, normal, pinned


def bill(packages):
    return {"components": [{"name": name, "version": version} for name, version in packages], "metadata": {}}


def test_a_bill_has_every_installed_package():
    installed = [(each.name, each.version) for each in distributions()]
    assert missing(bill(installed)) == []
    assert missing(bill([each for each in installed if normal(each[0]) != "numpy"]))[0].startswith("numpy==")
    assert missing(bill([(name, "0" if normal(name) == "numpy" else version) for name, version in installed]))


def test_packages_are_pinned_by_the_hashes_of_the_index():
    def item(name, version, info):
        return {"metadata": {"name": name, "version": version}, "download_info": info}

    report = {
        "install": [
            item("PyYAML", "6.0", {"archive_info": {"hashes": {"sha256": "ab12"}}, "url": "https://x/y.whl"}),
            item("edgeformer", "0.1", {"dir_info": {}, "url": "file:///here"}),
            item("click", "8.0", {"archive_info": {"hashes": {"sha256": "cd34"}}}),
        ]
    }
    assert pinned(report) == "click==8.0 --hash=sha256:cd34\npyyaml==6.0 --hash=sha256:ab12\n"
