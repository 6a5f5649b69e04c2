package model

// Peer is a process of the control plane, as the others know it. (A replica is
// something else: see App.)
type Peer struct {
	ID string
	// Address is the host:port at which the others call it.
	Address   string
	StartedAt int64
	LastSeen  int64 // on the database's clock
}
