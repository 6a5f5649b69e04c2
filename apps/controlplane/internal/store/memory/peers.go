package memory

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/store"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (t *tx) PutPeer(p model.Peer) error {
	stored, ok, err := peerTable.overlayIn(t).lock(p.ID)
	if err != nil {
		return err
	}
	if ok {
		p.StartedAt = stored.StartedAt
	}
	p.LastSeen = t.store.now()
	return peerTable.overlayIn(t).put(p)
}

func (t *tx) ListPeers(seenWithin int64) ([]model.Peer, error) {
	since := t.store.now() - seenWithin
	rows := peerTable.overlayIn(t).list(func(p model.Peer) bool { return p.LastSeen >= since })
	return pageOf(rows, store.Page{}, func(p model.Peer) string { return p.ID }), nil
}

func (t *tx) DeletePeer(id string) error { return peerTable.overlayIn(t).delete(id) }

func (t *tx) DeletePeers(unseenFor int64) (int, error) {
	since := t.store.now() - unseenFor
	rows, err := peerTable.overlayIn(t).lockList(func(p model.Peer) bool { return p.LastSeen < since })
	if err != nil {
		return 0, err
	}
	for _, p := range rows {
		if err := peerTable.overlayIn(t).delete(p.ID); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}

func (t *tx) PutStream(regionID, peerID string) error {
	return streamTable.overlayIn(t).put(regionStream{regionID: regionID, peerID: peerID})
}

func (t *tx) CountStreams() (int, error) {
	n := 0
	for _, r := range regionTable.overlayIn(t).list(func(r model.Region) bool { return r.Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED }) {
		if _, ok := streamTable.overlayIn(t).get(r.ID); ok {
			n++
		}
	}
	return n, nil
}

func (t *tx) GetStream(regionID string) (string, error) {
	s, ok := streamTable.overlayIn(t).get(regionID)
	s, err := oneRow(s, ok, "stream of region", regionID)
	return s.peerID, err
}

func (t *tx) PutPeerKeys(peerID string, keys []model.PeerKey) error {
	for _, k := range keys {
		if err := peerKeyTable.overlayIn(t).put(peerKey{peerID: peerID, keyID: k.KeyID, seals: k.Seals, lastSeen: t.store.now()}); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) ListPeerKeys() ([]model.PeerKey, error) {
	var out []model.PeerKey
	for _, k := range peerKeyTable.overlayIn(t).list(func(peerKey) bool { return true }) {
		out = append(out, model.PeerKey{PeerID: k.peerID, KeyID: k.keyID, Seals: k.seals, UnseenFor: max(t.store.now()-k.lastSeen, 0)})
	}
	return out, nil
}

func (t *tx) DeletePeerKeys(unseenFor int64) (int, error) {
	since := t.store.now() - unseenFor
	rows, err := peerKeyTable.overlayIn(t).lockList(func(k peerKey) bool { return k.lastSeen < since })
	if err != nil {
		return 0, err
	}
	for _, k := range rows {
		if err := peerKeyTable.overlayIn(t).delete(k.key()); err != nil {
			return 0, err
		}
	}
	return len(rows), nil
}
