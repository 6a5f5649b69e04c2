package store

import "github.com/windlass-run/windlass/apps/controlplane/internal/model"

// BrowserSessionTx has the queries of sessions of browsers. It reads the primary, so that a sign-out takes effect at
// once.
type BrowserSessionTx interface {
	InsertBrowserSession(model.BrowserSession) error
	GetBrowserSession(hash []byte) (model.BrowserSession, error)
	// IsBrowserSession reports whether any value of the session is valid at that time.
	IsBrowserSession(sessionID string, at int64) (bool, error)
	// CountBrowserSessionsOfKey counts the API key's values that are valid at that time, including links.
	CountBrowserSessionsOfKey(keyID string, at int64) (int, error)
	// ShortenBrowserSession makes the value expire at that time, unless it expires earlier. It fails with
	// model.ErrNotFound when the value is deleted. Otherwise it locks the value to the end of the transaction.
	ShortenBrowserSession(hash []byte, expiresAt int64) error
	// DeleteBrowserSession fails with model.ErrNotFound when the value is already deleted.
	DeleteBrowserSession(hash []byte) error
	// DeleteBrowserSessionByID deletes all values of the session, also one that a concurrent renewal adds.
	DeleteBrowserSessionByID(sessionID string) error
	// DeleteBrowserSessionsOfKey deletes all sessions and links of the API key, also those that are added
	// concurrently.
	DeleteBrowserSessionsOfKey(keyID string) error
	// DeleteBrowserSessions deletes values that expired before that time, the oldest first.
	DeleteBrowserSessions(expiredBefore int64, limit int) (int, error)
}
