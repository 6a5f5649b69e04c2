package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// SealedTx has the queries of the values that package seal has sealed with keys of the keyset, and of the keys that
// the processes of the control plane have.
type SealedTx interface {
	// ListSealedValues returns values of all workspaces that a key other than keyID sealed, in the
	// order of their identity, from after on.
	ListSealedValues(keyID uint32, after model.SealedValue, limit int) ([]model.SealedValue, error)
	// ResealValues replaces the ciphertext of each value that has not changed since it was read. It
	// returns how many values it replaced.
	ResealValues(values []model.ResealedValue) (int64, error)
	// CountSealedValues counts the values by the key that sealed them. 0: the value names no key.
	CountSealedValues() (map[uint32]int64, error)
	// PutPeerKeys stores that the process was seen now with the keys.
	PutPeerKeys(peerID string, keys []model.PeerKey) error
	// ListPeerKeys returns the keys of all stored processes, by process and key.
	ListPeerKeys() ([]model.PeerKey, error)
	// DeletePeerKeys deletes the keys of processes that were not seen for longer than unseenFor, in ms.
	DeletePeerKeys(unseenFor int64) (int, error)
}
