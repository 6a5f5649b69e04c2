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

// WithoutEndpointSlices is the flag that switches off the API server's own EndpointSlices, because
// allowLoopbackEndpoints adds its own.
const WithoutEndpointSlices = "--runtime-config=discovery.k8s.io/v1=false"

// allowLoopbackEndpoints makes the API server accept EndpointSlices with loopback addresses. Kubernetes
// refuses them, because 127.0.0.1 means a different endpoint on each node. But a kubelab is one host. Its
// pods have loopback addresses, because other addresses would need privileges. Everything else is validated
// as usual.
//
// Kubernetes lets tests add API groups to its server. So a flag switches the group off, and this function
// adds it again with the same storage and a different validation.
func allowLoopbackEndpoints() {
	controlplane.AdditionalStorageProvidersForTests = func(*kubernetes.Clientset) []controlplaneapiserver.RESTStorageProvider {
		return []controlplaneapiserver.RESTStorageProvider{endpointSlices{}}
	}
}

type endpointSlices struct{ discoveryrest.StorageProvider }

// NewRESTStorage returns Kubernetes' storage with loopbackCreate and loopbackUpdate as strategies.
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

// Validate validates as Kubernetes does, except loopback addresses.
func (s loopbackCreate) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return withoutLoopback(s.RESTCreateStrategy.Validate(ctx, obj))
}

type loopbackUpdate struct{ rest.RESTUpdateStrategy }

// ValidateUpdate validates as Kubernetes does, except loopback addresses.
func (s loopbackUpdate) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return withoutLoopback(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}

// withoutLoopback drops the errors of the rule that refuses loopback addresses. For a loopback address, that
// rule has no other error.
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
