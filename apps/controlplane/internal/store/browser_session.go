package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// BrowserSessionTx is what signs browsers in. It reads the primary: a sign-out holds at once.
type BrowserSessionTx interface {
	InsertBrowserSession(model.BrowserSession) error
	GetBrowserSession(hash []byte) (model.BrowserSession, error)
	// IsBrowserSession reports whether any value of the session is good at that time.
	IsBrowserSession(sessionID string, at int64) (bool, error)
	// CountBrowserSessionsOfKey counts the API key's values, links among them, that are good at that time.
	CountBrowserSessionsOfKey(keyID string, at int64) (int, error)
	// ShortenBrowserSession makes the value expire at that time, unless it does so before. It fails with
	// model.ErrNotFound when the value is gone, and otherwise keeps others from deleting it.
	ShortenBrowserSession(hash []byte, expiresAt int64) error
	// DeleteBrowserSession fails with model.ErrNotFound when the value is gone already.
	DeleteBrowserSession(hash []byte) error
	// DeleteBrowserSessionByID deletes all values of the session, also one that a renewal adds meanwhile.
	DeleteBrowserSessionByID(sessionID string) error
	// DeleteBrowserSessionsOfKey deletes all sessions and links of the API key, likewise.
	DeleteBrowserSessionsOfKey(keyID string) error
	// DeleteBrowserSessions forgets values that expired before that time, the oldest first.
	DeleteBrowserSessions(expiredBefore int64, limit int) (int, error)
}
