package peers

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/rpc"
	peerv1 "github.com/windlass-run/windlass/proto/gen/windlass/peer/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/peer/v1/peerv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// handler serves peers.
type handler struct {
	*Service
	nudged func(Nudge)
}

// Ask asks an agent for another process.
func (h handler) Ask(ctx context.Context, req *peerv1.AskRequest) (*peerv1.AskResponse, error) {
	if !h.cfg.Agents.Connected(req.RegionId) {
		return nil, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "region_id",
			"the region's stream is not here")
	}
	data, err := h.cfg.Agents.Ask(ctx, req.RegionId, req.Request)
	switch {
	case err == nil:
		return &peerv1.AskResponse{Data: data}, nil
	case errors.Is(err, model.ErrAgentUnreachable):
		code := connect.CodeFailedPrecondition // the agent was not asked
		if errors.Is(err, model.ErrNoAnswer) {
			code = connect.CodeUnavailable
		}
		return nil, rpc.Error(code, windlassv1.ErrorReason_ERROR_REASON_REGION_UNREACHABLE, "region_id", err.Error())
	case ctx.Err() != nil:
		return nil, fmt.Errorf("ask region %s for a peer: %w", req.RegionId, err)
	}
	return &peerv1.AskResponse{Error: err.Error()}, nil
}

// Handler returns the handler for calls of peers. Mount it at its path, on a listener that only they reach, in a server
// with Limits.
// It calls nudged with the changes that other processes committed, which must not block.
func (s *Service) Handler(cfg rpc.Config, nudged func(Nudge)) (path string, h http.Handler) {
	cfg.Admit, cfg.ReadMaxBytes = s.admitPeer, maxCallBytes
	return peerv1connect.NewPeerServiceHandler(handler{s, nudged}, rpc.HandlerOptions(cfg)...)
}
