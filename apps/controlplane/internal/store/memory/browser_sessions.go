package memory

import (
	"bytes"
	"cmp"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

func (t *tx) InsertBrowserSession(s model.BrowserSession) error {
	return browserTable.overlayIn(t).insert(s)
}

func (t *tx) GetBrowserSession(hash []byte) (model.BrowserSession, error) {
	s, ok := browserTable.overlayIn(t).get(string(hash))
	if !ok {
		return s, notFound("browser session", "by hash")
	}
	return s, nil
}

func (t *tx) IsBrowserSession(sessionID string, at int64) (bool, error) {
	return len(browserTable.overlayIn(t).list(func(s model.BrowserSession) bool { return s.SessionID == sessionID && s.ExpiresAt > at })) > 0, nil
}

func (t *tx) CountBrowserSessionsOfKey(keyID string, at int64) (int, error) {
	return len(browserTable.overlayIn(t).list(func(s model.BrowserSession) bool { return s.KeyID == keyID && s.ExpiresAt > at })), nil
}

func (t *tx) ShortenBrowserSession(hash []byte, expiresAt int64) error {
	s, ok, err := browserTable.overlayIn(t).lock(string(hash))
	if err != nil {
		return err
	}
	if !ok {
		return notFound("browser session", "by hash")
	}
	s.ExpiresAt = min(s.ExpiresAt, expiresAt)
	return browserTable.overlayIn(t).put(s)
}

func (t *tx) DeleteBrowserSession(hash []byte) error {
	if _, ok, err := browserTable.overlayIn(t).lock(string(hash)); err != nil {
		return err
	} else if !ok {
		return notFound("browser session", "by hash")
	}
	return browserTable.overlayIn(t).delete(string(hash))
}

func (t *tx) DeleteBrowserSessionByID(sessionID string) error {
	_, err := forgetRows(browserTable.overlayIn(t), 0, func(s model.BrowserSession) bool { return s.SessionID == sessionID }, nil)
	return err
}

func (t *tx) DeleteBrowserSessionsOfKey(keyID string) error {
	_, err := forgetRows(browserTable.overlayIn(t), 0, func(s model.BrowserSession) bool { return s.KeyID == keyID }, nil)
	return err
}

func (t *tx) DeleteBrowserSessions(expiredBefore int64, limit int) (int, error) {
	return forgetRows(browserTable.overlayIn(t), limit, func(s model.BrowserSession) bool { return s.ExpiresAt < expiredBefore },
		func(a, b model.BrowserSession) int {
			return cmp.Or(cmp.Compare(a.ExpiresAt, b.ExpiresAt), bytes.Compare(a.Hash, b.Hash))
		})
}
