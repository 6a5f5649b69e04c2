package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// SealedTx is the values that are sealed with keys of the keyset, as package seal makes them, and the
// keys that the control plane's processes have.
type SealedTx interface {
	// ListSealedValues returns values of all workspaces that a key other than keyID sealed, in the
	// order of their identity, from after on.
	ListSealedValues(keyID uint32, after model.SealedValue, limit int) ([]model.SealedValue, error)
	// ResealValues replaces the ciphertext of each value that still is as it was read. It returns how
	// many those were.
	ResealValues(values []model.ResealedValue) (int64, error)
	// CountSealedValues counts the values by the key that sealed them; 0: no key is named.
	CountSealedValues() (map[uint32]int64, error)
	// PutPeerKeys says that the process was seen now with the keys.
	PutPeerKeys(peerID string, keys []model.PeerKey) error
	// ListPeerKeys returns the keys of all processes that are remembered, by process and key.
	ListPeerKeys() ([]model.PeerKey, error)
	// DeletePeerKeys forgets those that were not seen for longer.
	DeletePeerKeys(unseenFor int64) (int, error)
}
