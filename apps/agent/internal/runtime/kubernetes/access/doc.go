// Package access connects the Kubernetes runtime to its cluster: clients, watches, and the agent's
// own objects.
//
//	API      calls to the API server: apply, get, delete, logs, permissions
//	Caches   objects from the watches, and from the answers to our own writes
//	Cluster  the agent's own namespace: the lease of the region, and shared Secrets
//
// Every call passes through one breaker. While the server cannot answer, the breaker lets one call
// through from time to time, to find out whether the server is back. This package retries after
// short failures. Its callers retry after an outage. The error of a call is a *runtime.Rejection
// that callers can return unchanged, an error of the context, or an error for which IsNotFound
// reports true.
//
// Caches store only the fields of objects that the runtime reads (slim.go). Caches.Get returns an
// object right after it was written. Secrets are not watched, because a client that may watch
// Secrets by a label may read all Secrets of the cluster.
//
// The package knows the names and labels of objects from render. It does not decide which objects
// should exist.
package access
