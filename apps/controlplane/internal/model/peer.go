package model

// Peer is a process of the control plane, as the other processes see it. (A replica is something else: see
// App.)
type Peer struct {
	ID string
	// Address is the host:port at which the other processes call it.
	Address   string
	StartedAt int64
	LastSeen  int64 // on the database's clock
}

// PeerKey is a key of the keyset that a process of the control plane read at its start.
type PeerKey struct {
	PeerID string
	KeyID  uint32
	// Seals is true for the key that the process seals with.
	Seals bool
	// UnseenFor is how long ago the process last reported the key, in ms.
	UnseenFor int64
}
