package fleet

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/proof"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Kinds of misuse of a credential.
const (
	withoutKey = "without_key"
	twoPlaces  = "two_places"
)

// checkKey returns an error for a key that is neither empty nor a public key of Ed25519.
func checkKey(key []byte) error {
	if len(key) == 0 || len(key) == ed25519.PublicKeySize {
		return nil
	}
	return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "public_key",
		fmt.Sprintf("a public key of Ed25519 has %d bytes, but this key has %d", ed25519.PublicKeySize, len(key)))
}

// checkProof returns the session of the call's proof. It returns an error if the credential is bound to a key and the call
// does not prove that key. It reports credentials that seem to be stolen to the region's owner.
func (s *Service) checkProof(ctx context.Context, call rpc.Call, id Identity, credential string, now time.Time) (session string, err error) {
	place := "address " + call.Client.String()
	if len(id.Key) > 0 {
		session, err = proof.Verify(call.Header.Get(proof.Header), id.Key, call.Procedure, credential, now)
		if err != nil {
			if !errors.Is(err, proof.ErrTime) {
				s.countMisuse(ctx, id.RegionID, withoutKey, err.Error(), call, now)
			}
			return "", rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "",
				"the agent's credential needs its key: "+err.Error())
		}
		place = "session " + session
	}
	if others := s.usage.recordUse(id.RegionID, place, now); others != "" {
		s.countMisuse(ctx, id.RegionID, twoPlaces, fmt.Sprintf("%s and %s use it alternately", place, others), call, now)
	}
	return session, nil
}

// compareSession reports a credential that is used in another session than the region's current one. prove sees only
// calls to this process. compareSession reads the session from the region's row, because the region's agent may be
// connected to another process.
func (s *Service) compareSession(ctx context.Context, region model.Region, id Identity, procedure string, now time.Time) {
	named := slices.Contains(region.AgentFeatures, agentv1.Feature_FEATURE_SESSION_PROOF.String())
	connected := region.Status == windlassv1.RegionStatus_REGION_STATUS_CONNECTED
	if !named || !connected || id.Session == "" || id.Session == region.SessionID {
		return
	}
	if s.usage.noteOverlap(region.ID, id.Session, region.SessionID, now) {
		s.countMisuse(ctx, region.ID, twoPlaces, fmt.Sprintf("session %s uses it, but session %s is the region's current session", id.Session, region.SessionID),
			rpc.Call{Procedure: procedure, Client: rpc.ClientOf(ctx)}, now)
	}
}

// countMisuse counts a misuse. At most once per tellEvery, it also writes an entry to the audit of the region's
// workspace.
func (s *Service) countMisuse(ctx context.Context, regionID, how, why string, call rpc.Call, now time.Time) {
	s.misuse.WithLabelValues(how).Inc()
	if !s.usage.claimEntry(regionID, how, now) {
		return
	}
	after, err := json.Marshal(map[string]string{"credential": how, "why": why})
	if err == nil {
		err = s.cfg.Store.Update(ctx, func(tx Tx) error {
			region, err := tx.GetRegion(regionID)
			if err != nil {
				return fmt.Errorf("read region %s: %w", regionID, err)
			}
			return tx.InsertAudit(model.Audit{
				ID: ident.New("aud"), WorkspaceID: region.WorkspaceID, At: now.UnixMilli(),
				Actor: "agent", ActorID: "credential " + how, Source: call.Client.String(),
				Procedure: call.Procedure, ResourceKind: "region", ResourceID: region.ID, After: string(after),
			})
		})
	}
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "cannot write the misuse of a credential to the audit", "region", regionID, "error", err)
	}
	s.cfg.Log.WarnContext(ctx, "an agent's credential seems to be stolen: revoke it with `windlass region revoke`",
		"region", regionID, "how", how, "why", why, "address", call.Client.String())
}

const (
	// turnsWithin is the time in which changes between two places are counted. With maxTurns changes, two agents are
	// assumed to use the credential. An agent that replaces another agent causes fewer changes.
	turnsWithin = 10 * time.Minute
	maxTurns    = 3
	// overlapFor is how long two sessions may use a credential at the same time, because one agent replaces another.
	overlapFor = time.Minute
	// tellEvery is the minimum time between two entries of one kind about one region.
	tellEvery = 10 * time.Minute
)

// usage records from where each region's credential was used. It is safe for concurrent use.
type usage struct {
	mu      sync.Mutex
	regions map[string]*places
	pairs   map[string]pair
	audited map[[2]string]time.Time
}

// pair is a session that used a region's credential, the region's session at that time, and the time of the first
// use.
type pair struct {
	session, current string
	since            time.Time
}

// places are the last two places from which a credential was used.
type places struct {
	last, before string
	// turns counts returns to the previous place. since is the time of the first return.
	turns int
	since time.Time
}

func newUsage() *usage {
	return &usage{regions: map[string]*places{}, pairs: map[string]pair{}, audited: map[[2]string]time.Time{}}
}

// recordUse records a use. It returns the other place if the use alternates between the two places. Agents that replace
// each other do not alternate, because each start of an agent is a new place.
func (u *usage) recordUse(region, place string, now time.Time) (other string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.regions[region]
	switch {
	case p == nil:
		u.regions[region] = &places{last: place}
		return ""
	case p.last == place:
		return ""
	case p.before != place:
		p.turns = 0
	case p.turns == 0 || now.Sub(p.since) > turnsWithin:
		p.turns, p.since = 1, now
	default:
		p.turns++
	}
	p.last, p.before = place, p.last
	if p.turns < maxTurns {
		return ""
	}
	return p.before
}

// noteOverlap records that the session used the region's credential while current is the region's session. It reports
// whether this has lasted longer than overlapFor.
func (u *usage) noteOverlap(region, session, current string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.pairs[region]
	if p.session != session || p.current != current {
		u.pairs[region] = pair{session, current, now}
		return false
	}
	return now.Sub(p.since) >= overlapFor
}

// claimEntry reports whether the last audit entry of the kind about the region is older than tellEvery. If it is, the
// caller must write one, and now is its time.
func (u *usage) claimEntry(region, how string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := [2]string{region, how}
	if at, ok := u.audited[key]; ok && now.Sub(at) < tellEvery {
		return false
	}
	u.audited[key] = now
	return true
}
