"""A CycloneDX 1.5 bill of materials of a wheel, from its manifest alone; it goes to dist-info/sboms (PEP 770).

It names what the artifacts were made with. Two equal manifests give equal bytes: there is no time in it, and the serial
number is derived from the manifest.
"""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import quote

from model_cache.wheel.manifest import Manifest
from model_cache.wheel.names import normalize

__all__ = ["FILE_NAME", "to_bytes"]

FILE_NAME = "model-cache.cdx.json"
SPEC_VERSION = "1.5"

_NAMESPACE = uuid.UUID("6d0c6f57-6b0c-5b0e-9d36-0a2c7c5d4f0e")
_PACKAGES = ("flashinfer-python", "flashinfer-cubin", "ninja")
"""Answers of the build host that are versions of packages."""


def to_bytes(manifest: Manifest) -> bytes:
    """The bill of materials for `manifest`."""
    root = _package(manifest.name, manifest.version, "data")
    components = [*_components(manifest), _model(manifest), *_files(manifest)]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, manifest.to_json_bytes().decode())}",
        "version": 1,
        "metadata": {
            "component": root,
            "tools": {"components": [_tool(manifest.build.tool)]},
            "properties": _properties(manifest),
        },
        "components": components,
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": sorted(component["bom-ref"] for component in components)},
            *({"ref": component["bom-ref"], "dependsOn": []} for component in components),
        ],
        # The engine's environment holds more packages than a manifest names.
        "compositions": [{"aggregate": "incomplete", "assemblies": [root["bom-ref"]]}],
    }
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def _components(manifest: Manifest) -> list[dict[str, Any]]:
    engine = manifest.engine
    packages = {engine.name: engine.version, "torch": engine.torch, "triton": engine.triton}
    for name in _PACKAGES:
        version = manifest.host_answers.get(name)
        if isinstance(version, str):
            packages[name] = version
    found = [_package(name, version, "framework") for name, version in sorted(packages.items()) if version]
    platforms = {"cuda": engine.cuda, "python": engine.python}
    return found + [_generic(name, version) for name, version in platforms.items() if version]


def _package(name: str, version: str, kind: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{normalize(name)}@{quote(version, safe='.')}"
    return {"type": kind, "name": name, "version": version, "purl": purl, "bom-ref": purl}


def _generic(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:generic/{name}@{quote(version, safe='.')}"
    return {"type": "platform", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def _model(manifest: Manifest) -> dict[str, Any]:
    model = manifest.model
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "name": model.id,
        "bom-ref": f"model:{model.config_sha256}",
        "properties": [_property("config_sha256", model.config_sha256)],
    }
    return found | ({"version": model.revision} if model.revision else {})


def _files(manifest: Manifest) -> list[dict[str, Any]]:
    return [
        {
            "type": "file",
            "name": f"blobs/{digest[:2]}/{digest}",
            "bom-ref": f"sha256:{digest}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for digest in sorted(manifest.blobs())
    ]


def _tool(tool: str) -> dict[str, Any]:
    name, _, version = tool.rpartition(" ")
    return {"type": "application", "name": name, "version": version} if name else {"type": "application", "name": tool}


def _properties(manifest: Manifest) -> list[dict[str, str]]:
    source = manifest.build.source
    found = {
        "build_mode": manifest.build.mode,
        "recipe_digest": manifest.build.recipe_digest,
        "targets": ", ".join(target.name for target in manifest.targets),
    }
    if source.commit:
        found |= {"source_commit": source.commit, "source_dirty": str(source.dirty).lower()}
    return [_property(name, value) for name, value in sorted(found.items())]


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"model-cache:{name}", "value": value}
