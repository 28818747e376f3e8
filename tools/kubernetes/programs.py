"""Kubernetes, Helm and CoreDNS, compiled from Go modules once, and the schema of KEDA's object."""

from pathlib import Path

from tools.containers.images import go_file, go_program

_KUBERNETES = "1.34.4"  # from 1.35 on the kubelet refuses cgroups v1
_HELM, _DNS, _KEDA = "3.19.5", "1.12.4", "2.21.0"
_COMPILED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_VERSION = "k8s.io/component-base/version"
# Modules of Kubernetes' own repository, which its go.mod looks for in a folder beside it.
_STAGING = (
    "api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap "
    "code-generator component-base component-helpers controller-manager cri-api cri-client csi-translation-lib "
    "dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy "
    "kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver"
)
_DNS_SOURCE = Path(__file__).with_name("recipes") / "coredns.go"


def compile_programs() -> dict[str, Path]:
    """Return all programs by name. The first time takes about ten minutes on two idle cores."""
    major, minor, patch = _KUBERNETES.split(".")
    replaced = [f"k8s.io/{each}=k8s.io/{each}@v0.{minor}.{patch}" for each in _STAGING.split()]
    parts = {"gitVersion": f"v{_KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    linked = " ".join(f"-X {_VERSION}.{name}={value}" for name, value in parts.items())
    programs = {
        name: go_program(name, f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES, replaced=replaced, linked=linked)
        for name in _COMPILED
    }
    programs["helm"] = go_program("helm", "helm.sh/helm/v3/cmd/helm", _HELM)
    programs["coredns"] = go_program("coredns", "github.com/coredns/coredns", _DNS, source=_DNS_SOURCE.read_text())
    return programs


def scaled_object_schema() -> Path:
    """Return KEDA's CustomResourceDefinition of a ScaledObject, downloaded once."""
    return go_file("github.com/kedacore/keda/v2", _KEDA, "config/crd/bases/keda.sh_scaledobjects.yaml")
