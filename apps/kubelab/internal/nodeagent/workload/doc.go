// Package workload runs the programs of containers: a child process of this host,
// or a model server inside this process.
//
//	Start ──> Run ──(idle | delay)──> host process   own process group, killed with us
//	                              └─> model server   listeners on the pod's address
//
// A Run ends exactly once and says how, by its exit function. Before that it can
// be asked to end, killed, frozen and thawed at any time, also while its program
// has yet to start. A frozen run says nothing more to anyone, as if its host had
// lost power or its network: a process is stopped, a server's connections stay
// open and carry no byte.
package workload
