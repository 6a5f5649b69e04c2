package component

import (
	"context"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	endpointslicestorage "k8s.io/kubernetes/pkg/registry/discovery/endpointslice/storage"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
)

// WithoutEndpointSlices is the flag of the API server that switches its own
// EndpointSlices off, whose place those of allowLoopbackEndpoints take.
const WithoutEndpointSlices = "--runtime-config=discovery.k8s.io/v1=false"

// allowLoopbackEndpoints makes the API server accept EndpointSlices with loopback
// addresses. Kubernetes refuses them, because an endpoint on 127.0.0.1 would be
// each node's own; but a kubelab is one host, and its pods have loopback addresses
// so that it needs no privilege. Everything else about them is validated as ever.
//
// Kubernetes lets tests add groups of APIs to its server. So the group is switched
// off by flag and added again, with the same storage behind another validation.
func allowLoopbackEndpoints() {
	controlplane.AdditionalStorageProvidersForTests = func(*kubernetes.Clientset) []controlplaneapiserver.RESTStorageProvider {
		return []controlplaneapiserver.RESTStorageProvider{endpointSlices{}}
	}
}

type endpointSlices struct{ discoveryrest.StorageProvider }

// NewRESTStorage is that of Kubernetes with loopbackStrategy in it.
func (p endpointSlices) NewRESTStorage(_ serverstorage.APIResourceConfigSource, options generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error) {
	enabled := serverstorage.NewResourceConfig()
	enabled.EnableVersions(discoveryv1.SchemeGroupVersion)
	info, err := p.StorageProvider.NewRESTStorage(enabled, options)
	if err != nil {
		return info, err
	}
	for _, resources := range info.VersionedResourcesStorageMap {
		for _, storage := range resources {
			if s, ok := storage.(*endpointslicestorage.REST); ok {
				s.CreateStrategy = loopbackCreate{s.CreateStrategy}
				s.UpdateStrategy = loopbackUpdate{s.UpdateStrategy}
			}
		}
	}
	return info, nil
}

type loopbackCreate struct{ rest.RESTCreateStrategy }

// Validate as Kubernetes does, but for loopback addresses.
func (s loopbackCreate) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return withoutLoopback(s.RESTCreateStrategy.Validate(ctx, obj))
}

type loopbackUpdate struct{ rest.RESTUpdateStrategy }

// ValidateUpdate as Kubernetes does, but for loopback addresses.
func (s loopbackUpdate) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return withoutLoopback(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

// withoutLoopback drops the errors that say of a loopback address that it is one:
// for such an address, the rule of that origin has nothing else to say.
func withoutLoopback(errs field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		text, ok := e.BadValue.(string)
		if !ok || e.Origin != "format=endpoint-ip" {
			return false
		}
		addr, err := netip.ParseAddr(text)
		return err == nil && addr.IsLoopback()
	})
}

var _ controlplaneapiserver.RESTStorageProvider = endpointSlices{}
