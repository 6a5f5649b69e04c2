// Package access is how the Kubernetes runtime reaches its cluster: clients, watches and the agent's own objects.
//
//	API      calls of the API server: apply, get, delete, logs, rights
//	Caches   what the watches hold, and what the server answered to our own writes
//	Cluster  the agent's own namespace: the lease of the region, and shared Secrets
//
// Every call passes one gate. While the server answers nothing, one call in a while finds out whether it is
// back, however many callers wait. This package retries after short failures, and the caller after an outage.
// The error of a call is a *runtime.Rejection, so that callers pass it on as it is.
//
// Caches keep the fields of objects that the runtime reads (slim.go). An object that was written is known at once
// (Caches.Get). Secrets are not watched, because a right to watch the Secrets of a label is a right to read all
// Secrets of the cluster.
//
// The package knows names and labels of objects from render. It does not decide what should be there.
package access
