// Package podloader gets the files of models into pods.
//
//	agent --(sealed request)--> loader, in the pod of a server --> artifact.Store --> volume <-- server
//
// The loader is a container next to the server, with the agent's program. It has its own user, no account in the cluster,
// and none of the server's variables. The server can read the volume, and cannot change it.
//
// Requests have secrets for sources. So they are encrypted and authenticated with a key that only the agent and the loader
// of the workload have (AES-256-GCM), and are bound to one pod. Who sends a copied request to the same pod again makes it
// fetch the same files.
package podloader
