package mysql

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
)

func browserSession(r gen.BrowserSession) (model.BrowserSession, error) {
	return model.BrowserSession{
		Hash: blobOrNil(r.Hash), SessionID: r.SessionID, WorkspaceID: r.WorkspaceID, KeyID: r.KeyID, KeyHash: blobOrNil(r.KeyHash),
		IsLink: r.IsLink, SignedInAt: r.SignedInAt, ExpiresAt: r.ExpiresAt,
	}, nil
}

func (t *tx) InsertBrowserSession(s model.BrowserSession) error {
	return t.queryError(t.q.InsertBrowserSession(t.ctx, gen.InsertBrowserSessionParams{
		Hash: notNull(s.Hash), SessionID: s.SessionID, WorkspaceID: s.WorkspaceID, KeyID: s.KeyID, KeyHash: notNull(s.KeyHash),
		IsLink: s.IsLink, SignedInAt: s.SignedInAt, ExpiresAt: s.ExpiresAt,
	}), "insert browser session", s.SessionID)
}

func (t *tx) GetBrowserSession(hash []byte) (model.BrowserSession, error) {
	return get(t, "get browser session", "by hash", browserSession)(t.primary.GetBrowserSession(t.ctx, hash))
}

func (t *tx) IsBrowserSession(sessionID string, at int64) (bool, error) {
	n, err := t.primary.CountBrowserSession(t.ctx, gen.CountBrowserSessionParams{SessionID: sessionID, At: at})
	return n > 0, t.queryError(err, "look for browser session", sessionID)
}

func (t *tx) CountBrowserSessionsOfKey(keyID string, at int64) (int, error) {
	n, err := t.primary.CountBrowserSessionsOfKey(t.ctx, gen.CountBrowserSessionsOfKeyParams{KeyID: keyID, At: at})
	return int(n), t.queryError(err, "count browser sessions of key", keyID)
}

func (t *tx) ShortenBrowserSession(hash []byte, expiresAt int64) error {
	n, err := t.q.ShortenBrowserSession(t.ctx, gen.ShortenBrowserSessionParams{ExpiresAt: expiresAt, Hash: hash})
	return t.requireFound(n, err, "shorten browser session", "by hash")
}

func (t *tx) DeleteBrowserSession(hash []byte) error {
	n, err := t.q.DeleteBrowserSession(t.ctx, hash)
	return t.requireFound(n, err, "delete browser session", "by hash")
}

func (t *tx) DeleteBrowserSessionByID(sessionID string) error {
	return t.queryError(untilNone(func() (int64, error) { return t.q.DeleteBrowserSessionByID(t.ctx, sessionID) }), "delete browser session", sessionID)
}

func (t *tx) DeleteBrowserSessionsOfKey(keyID string) error {
	return t.queryError(untilNone(func() (int64, error) { return t.q.DeleteBrowserSessionsOfKey(t.ctx, keyID) }), "delete browser sessions of key", keyID)
}

// untilNone repeats a DELETE until it finds no row. A renewal shortens a session's row and inserts the next row. A DELETE
// that waited for the shortened row may already be past the place of the next row in the index.
func untilNone(do func() (int64, error)) error {
	for {
		if n, err := do(); err != nil || n == 0 {
			return err
		}
	}
}

func (t *tx) DeleteBrowserSessions(expiredBefore int64, n int) (int, error) {
	gone, err := t.q.DeleteBrowserSessions(t.ctx, gen.DeleteBrowserSessionsParams{ExpiredBefore: expiredBefore, Limit: limitOrAll(n)})
	return int(gone), t.queryError(err, "delete browser sessions", "")
}
