package mysql

import (
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/db/gen"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func (t *tx) PutPeer(p model.Peer) error {
	return t.queryError(t.q.PutPeer(t.ctx, gen.PutPeerParams{ID: p.ID, Address: p.Address, StartedAt: p.StartedAt}), "put peer", p.ID)
}

// ListPeers reads the primary, because a replica of the database may lack a process that just started.
func (t *tx) ListPeers(seenWithin int64) ([]model.Peer, error) {
	return list(t, "list peers", "", func(r gen.Peer) (model.Peer, error) {
		return model.Peer{ID: r.ID, Address: r.Address, StartedAt: r.StartedAt, LastSeen: r.LastSeen}, nil
	})(t.primary.ListPeers(t.ctx, seenWithin))
}

func (t *tx) DeletePeer(id string) error {
	return t.queryError(t.q.DeletePeer(t.ctx, id), "delete peer", id)
}

func (t *tx) DeletePeers(unseenFor int64) (int, error) {
	n, err := t.q.DeletePeers(t.ctx, unseenFor)
	return int(n), t.queryError(err, "delete peers", "")
}

func (t *tx) PutStream(regionID, peerID string) error {
	return t.queryError(t.q.PutStream(t.ctx, gen.PutStreamParams{Region: regionID, PeerID: peerID}), "put stream of region", regionID)
}

// CountStreams reads the primary like ListPeers, because callers compare their results.
func (t *tx) CountStreams() (int, error) {
	n, err := t.primary.CountStreams(t.ctx, int32(windlassv1.RegionStatus_REGION_STATUS_CONNECTED))
	return int(n), t.queryError(err, "count streams", "")
}

// GetStream reads the primary, because the agent may have just moved.
func (t *tx) GetStream(regionID string) (string, error) {
	return get(t, "get stream of region", regionID, func(id string) (string, error) { return id, nil })(
		t.primary.GetStream(t.ctx, regionID))
}

func (t *tx) PutPeerKeys(peerID string, keys []model.PeerKey) error {
	for _, k := range keys {
		var seals int8
		if k.Seals {
			seals = 1
		}
		err := t.q.PutPeerKey(t.ctx, gen.PutPeerKeyParams{PeerID: peerID, KeyID: int64(k.KeyID), Seals: seals})
		if err != nil {
			return t.queryError(err, "put keys of peer", peerID)
		}
	}
	return nil
}

// ListPeerKeys reads the primary, like ListPeers.
func (t *tx) ListPeerKeys() ([]model.PeerKey, error) {
	return list(t, "list keys of peers", "", func(r gen.ListPeerKeysRow) (model.PeerKey, error) {
		return model.PeerKey{PeerID: r.PeerID, KeyID: uint32(r.KeyID), Seals: r.Seals != 0, UnseenFor: max(r.UnseenFor, 0)}, nil
	})(t.primary.ListPeerKeys(t.ctx))
}

func (t *tx) DeletePeerKeys(unseenFor int64) (int, error) {
	n, err := t.q.DeletePeerKeys(t.ctx, unseenFor)
	return int(n), t.queryError(err, "delete keys of peers", "")
}
