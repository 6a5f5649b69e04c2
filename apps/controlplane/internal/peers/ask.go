package peers

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
)

// maxHops bounds how often Ask follows an agent that moves to another process meanwhile.
const maxHops = 3

// Ask asks the region's agent, through the process that holds its stream. ctx must have a deadline. An error
// other than model.ErrAgentUnreachable and model.ErrNoAnswer comes from the agent.
func (s *Service) Ask(ctx context.Context, region string, req *agentv1.Request) ([]byte, error) {
	asked := ""
	for range maxHops {
		holder, peer, err := s.holderOf(ctx, region)
		switch {
		case err != nil:
			// Callers pass the agent's errors on to tenants, but must not pass on errors of our database.
			return nil, fmt.Errorf("find the stream of region %s: %w: %w", region, model.ErrAgentUnreachable, err)
		case holder == "" || holder == s.cfg.ID:
			return s.cfg.Agents.Ask(ctx, region, req)
		case peer.ID == "" || holder == asked:
			// The process is gone or no longer has the stream, and its agent has not come back yet.
			s.metrics.countAsk(model.ErrAgentUnreachable)
			return nil, fmt.Errorf("ask region %s: %w", region, model.ErrAgentUnreachable)
		}
		data, moved, err := s.forwardRequest(ctx, peer, region, req)
		if moved {
			asked = holder
			continue
		}
		s.metrics.countAsk(err)
		return data, err
	}
	return nil, fmt.Errorf("ask region %s: its agent keeps moving to other processes: %w", region, model.ErrAgentUnreachable)
}

// holderOf returns the process at which the region's agent last watched, and its row while that is valid.
func (s *Service) holderOf(ctx context.Context, region string) (id string, peer model.Peer, err error) {
	err = s.cfg.Store.View(ctx, func(tx Tx) error {
		id, peer = "", model.Peer{}
		id, err = tx.GetStream(region)
		if errors.Is(err, model.ErrNotFound) || id == s.cfg.ID {
			return nil
		}
		if err != nil {
			return err
		}
		others, err := tx.ListPeers(s.cfg.Lease.Milliseconds())
		for _, p := range others {
			if p.ID == id {
				peer = p
			}
		}
		return err
	})
	return id, peer, err
}

// forwardRequest asks through the peer. moved reports that the peer does not hold the stream.
func (s *Service) forwardRequest(ctx context.Context, p model.Peer, region string, req *agentv1.Request) (data []byte, moved bool, err error) {
	res, err := s.clientOf(p).Ask(ctx, &peerv1.AskRequest{RegionId: region, Request: req})
	switch {
	case err == nil && res.Error != "":
		return nil, false, errors.New(res.Error)
	case err == nil:
		return res.Data, false, nil
	case ctx.Err() == nil && connect.CodeOf(err) == connect.CodeNotFound:
		return nil, true, nil
	case connect.CodeOf(err) == connect.CodeFailedPrecondition:
		return nil, false, fmt.Errorf("ask region %s through %s at %s: %w: %w", region, p.ID, p.Address, model.ErrAgentUnreachable, err)
	}
	return nil, false, fmt.Errorf("ask region %s through %s at %s: %w: %w", region, p.ID, p.Address, model.ErrNoAnswer, err)
}
