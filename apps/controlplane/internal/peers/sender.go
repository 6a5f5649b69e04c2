package peers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/rpc"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/peer/v1/peerv1connect"
)

// maxNames bounds the names in one nudge, and so the memory for a peer that hangs.
const maxNames = 10_000

// retryCalls is short at first, because a nudge is useful only until the peer's next beat.
var retryCalls = backoff.Policy{Min: 50 * time.Millisecond, Max: 5 * time.Second}

// sender sends nudges to one peer.
type sender struct {
	svc    *Service
	peer   model.Peer
	client peerv1connect.PeerServiceClient
	cancel context.CancelFunc
	signal chan struct{} // buffer of one
	loads  waitingLoads

	mu      sync.Mutex
	regions map[string]struct{}
	all     bool
	apps    map[string]struct{}
}

func newSender(s *Service, p model.Peer, cancel context.CancelFunc) *sender {
	to := &sender{
		svc: s, peer: p, client: s.clientOf(p), cancel: cancel,
		signal:  make(chan struct{}, 1),
		loads:   newWaitingLoads(),
		regions: map[string]struct{}{}, apps: map[string]struct{}{},
	}
	to.wakeUp() // an empty nudge is the greeting
	return to
}

func (s *Service) clientOf(p model.Peer) peerv1connect.PeerServiceClient {
	// Processes of releases without TLS between replicas store host:port. They are called with TLS, which fails,
	// because the credential of this process must not be sent in plaintext.
	_, address, ok := strings.Cut(p.Address, "://")
	if !ok {
		address = p.Address
	}
	return peerv1connect.NewPeerServiceClient(s.cfg.HTTP, "https://"+address, rpc.ClientOptions(rpc.ClientConfig{
		Token: s.tokenSource(p.ID), UserAgent: "windlass-controlplane",
	})...)
}

func (to *sender) wakeUp() {
	select {
	case to.signal <- struct{}{}:
	default:
	}
}

// add adds to the next nudge. It never blocks.
func (to *sender) add(n Nudge) {
	to.mu.Lock()
	to.all = to.all || n.AllRegions || len(to.regions)+len(n.Regions) > maxNames
	if to.all {
		clear(to.regions)
	} else {
		for _, id := range n.Regions {
			to.regions[id] = struct{}{}
		}
	}
	// Watchers whose app is left out read it again by themselves.
	for _, id := range n.Apps[:min(len(n.Apps), maxNames-len(to.apps))] {
		to.apps[id] = struct{}{}
	}
	to.mu.Unlock()
	to.wakeUp()
}

// take returns the next nudge, and clears it.
func (to *sender) take() Nudge {
	to.mu.Lock()
	defer to.mu.Unlock()
	n := Nudge{Regions: slices.Sorted(maps.Keys(to.regions)), AllRegions: to.all, Apps: slices.Sorted(maps.Keys(to.apps))}
	clear(to.regions)
	clear(to.apps)
	to.all = false
	return n
}

// run sends nudges until ctx ends, which is when the peer is gone or this process stops.
func (to *sender) run(ctx context.Context) {
	log := to.svc.cfg.Log.With("peer", to.peer.ID, "address", to.peer.Address)
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-to.signal:
		}
		n := to.take()
		err := to.send(ctx, n)
		if ctx.Err() != nil {
			return
		}
		to.svc.metrics.countNudge(err)
		if err == nil {
			if failures > 0 {
				log.Info("a peer can be reached again")
			}
			failures = 0
			continue
		}
		if failures == 0 {
			log.Warn("cannot reach a peer: until then it finds commits by polling", "error", err)
		}
		// The peer may have ended, or have another address.
		to.svc.requestRound()
		to.add(n)
		if backoff.Sleep(ctx, retryCalls.Delay(failures, to.svc.cfg.Random)) != nil {
			return
		}
		failures++
	}
}

func (to *sender) send(ctx context.Context, n Nudge) error {
	ctx, cancel := context.WithTimeout(ctx, to.svc.cfg.CallTimeout)
	defer cancel()
	_, err := to.client.Nudge(ctx, &peerv1.NudgeRequest{
		From: to.svc.cfg.ID, Regions: n.Regions, AllRegions: n.AllRegions, Apps: n.Apps,
	})
	return err
}
