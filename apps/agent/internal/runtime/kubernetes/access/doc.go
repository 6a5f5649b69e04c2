// Package access is how the Kubernetes runtime reaches its cluster: clients, watches and the agent's own objects.
//
//	API      calls to the API server: apply, get, delete, logs, rights
//	Caches   objects from the watches, and from the answers to our own writes
//	Cluster  the agent's own namespace: the lease of the region, and shared Secrets
//
// Every call passes one breaker. While the server cannot answer, the breaker lets one call through from time to time,
// to find out whether the server is back. This package retries after short failures, and its callers after an
// outage. The error of a call is a *runtime.Rejection, which callers can return unchanged, that of the
// context, or one for which IsNotFound reports true.
//
// Caches keep only the fields of objects that the runtime reads (slim.go). Caches.Get returns an object right after
// it was written. Secrets are not watched, because a right to watch the Secrets of a label is a right to read all
// Secrets of the cluster.
//
// The package knows names and labels of objects from render. It does not decide what should be there.
package access
