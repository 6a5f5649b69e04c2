package dispatch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/rpc"
)

// A load balancer spreads connections only when they are made, and the connection of an agent lasts for weeks. After
// a rolling restart, the process that restarted last has no streams. So each process computes its share of the
// streams, and sends the excess away. There is no leader. If the balancer prefers the process with the fewest
// connections, one step is enough. With round-robin several steps are needed, because it spreads the returning
// streams evenly.

// goAway is the error that ends a stream whose agent should connect to another process, after a random part of
// spread.
type goAway struct {
	error
	spread time.Duration
}

var (
	errLeaving = errors.New("this server is stopping")
	errUneven  = errors.New("other servers have fewer streams")
)

// Each returning agent needs a transaction and processor time, see docs/performance.md. With one agent per 2 ms, the
// agents use less than one core: 1,000 agents are spread over 2 s. A region's changes wait until its agent has
// returned, so fewer agents are spread over less time.
const (
	spreadEach = 2 * time.Millisecond
	minSpread  = 100 * time.Millisecond
	maxSpread  = 10 * time.Second
)

func spreadOf(streams int) time.Duration {
	return min(max(time.Duration(streams)*spreadEach, minSpread), maxSpread)
}

// returnSpread returns the time over which agents spread their return when this process leaves.
func (s *Service) returnSpread() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return spreadOf(s.leavers)
}

// isLeaving reports whether the process, or the server of the call, is stopping.
func (s *Service) isLeaving(ctx context.Context) bool {
	select {
	case <-s.draining:
		return true
	default:
		return rpc.Stopping(ctx)
	}
}

// seenWithin is how long a process counts after its last beat: two beats. If it were longer, other processes would
// send streams away for a process that has ended.
const seenWithin = 10 * time.Second

// shedExcess sends away streams above this process's share, until ctx ends.
func (s *Service) shedExcess(ctx context.Context) {
	var peers []string
	changed, failing := time.Now(), false
	for backoff.Sleep(ctx, s.cfg.Even/2+time.Duration(s.cfg.Random()*float64(s.cfg.Even))) == nil {
		now, all, err := s.peerStreams(ctx)
		if err != nil {
			if ctx.Err() == nil && !failing {
				s.cfg.Log.WarnContext(ctx, "cannot count the agents' streams, retrying", "error", err)
			}
			failing = true
			continue
		}
		failing = false
		if !slices.Equal(peers, now) {
			peers, changed = now, time.Now()
		}
		if time.Since(changed) >= s.cfg.EvenAfter {
			s.sendAway(ctx, all, len(peers))
		}
	}
}

// peerStreams returns all processes, including this one, and the sum of their streams.
func (s *Service) peerStreams(ctx context.Context) (peers []string, streams int, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Even)
	defer cancel()
	err = s.cfg.Store.View(ctx, func(tx Tx) (err error) {
		var rows []model.Peer
		if rows, err = tx.ListPeers(seenWithin.Milliseconds()); err != nil {
			return err
		}
		peers = peers[:0]
		for _, p := range rows {
			peers = append(peers, p.ID)
		}
		streams, err = tx.CountStreams()
		return err
	})
	return peers, streams, err
}

func (s *Service) sendAway(ctx context.Context, all, peers int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var staying []string
	for region, st := range s.streams {
		if !st.leaving {
			staying = append(staying, region)
		}
	}
	n := excessStreams(len(staying), all, peers)
	if n == 0 || s.drained {
		return
	}
	s.cfg.Log.InfoContext(ctx, "other servers have fewer streams: sending some agents away", "streams", len(s.streams), "of", all, "servers", peers, "sent_away", n)
	spread, left := spreadOf(n), n
	slices.Sort(staying)
	at := int(s.cfg.Random() * float64(len(staying))) // random, so that not always the same agents move
	for _, region := range slices.Concat(staying[at:], staying[:at]) {
		if left == 0 {
			break
		}
		st := s.streams[region]
		select {
		case st.away <- goAway{errUneven, spread}:
			st.leaving = true
			left--
		default:
		}
	}
}

// excessStreams returns the number of a process's streams above its share, 0 if the process is close to its share.
// With small numbers, random differences of a quarter are normal, and no reason to move streams.
func excessStreams(own, all, peers int) int {
	if peers < 2 {
		return 0
	}
	share := (max(all, own) + peers - 1) / peers
	if own <= share+share/4+2 {
		return 0
	}
	return own - share
}
