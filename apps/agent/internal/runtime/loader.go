package runtime

import (
	"errors"
	"path/filepath"
)

// Loader says how to call the loader in the pod of a server of models, which fetches files of models.
type Loader struct {
	// Address is host:port. Pod is the pod's UID.
	Address, Pod string
	// Key is the key that the agent and the loader share.
	Key []byte
}

// LoaderReadyPath is the path at which a loader answers 200 once the repository of its server exists.
const LoaderReadyPath = "/ready"

// PodRepository returns the directory in which the server of a pod finds its models. dir is the directory of the volume with
// files of models.
func PodRepository(dir, pod string) string { return filepath.Join(dir, pod, "servers", "self") }

// WithLoaders is a Runtime whose servers of models may have a loader in their pod.
type WithLoaders interface {
	// Loaders returns the loaders, or nil if new servers have none.
	Loaders() Loaders
}

// Loaders are the loaders of a region's servers.
type Loaders interface {
	// LoaderOf returns how to call the loader of a server. It fails with ErrUnknownInstance if no instance has that id, and
	// with ErrNoLoader if the instance has no loader, or no address yet.
	LoaderOf(instanceID string) (Loader, error)
}

// ErrNoLoader means that an instance has no loader.
var ErrNoLoader = errors.New("the instance has no loader of files of models: it may have been started before the agent had --loader-image; restart it")
