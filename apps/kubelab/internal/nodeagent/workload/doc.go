// Package workload runs the programs of containers. A program is a child process on this host, or a model
// server inside this process.
//
//	Start ──> Run ──(idle | delay)──> host process   own process group, killed with us
//	                              └─> model server   listeners on the pod's address
//
// A Run ends exactly once, and passes its exit to its exit function. Before that it can be terminated,
// killed, frozen and thawed at any time, even before its program starts. A frozen run sends nothing, as if
// its host had lost power or its network. Its process is stopped, or its server's connections stay open and
// carry no bytes.
package workload
