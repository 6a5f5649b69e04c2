package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/admission"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/apps/controlplane/internal/trail"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Join exchanges a join token for a credential.
func (s *Service) Join(ctx context.Context, req *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	res, err := s.joinRegion(ctx, req)
	if err != nil {
		s.noteCall(model.Region{}, rpc.ClientOf(ctx), trail.Entry{Procedure: agentv1connect.AgentServiceJoinProcedure, Outcome: outcomeOf(err)})
	}
	return res, err
}

func (s *Service) joinRegion(ctx context.Context, req *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	now := time.Now()
	failed := false
	refused := func(why string) error {
		failed = true
		return rpc.Error(connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_JOIN_TOKEN_INVALID, "token",
			why+": make a new one with `windlass region token`")
	}
	if err := checkKey(req.PublicKey); err != nil {
		return nil, err
	}
	from := admission.ClientKey(rpc.ClientOf(ctx))
	if wait := s.cfg.FailedJoins.Take(from, now.UnixMicro()); wait > 0 {
		return nil, rpc.TooFast(wait, &windlassv1.ErrorDetail{
			Reason: windlassv1.ErrorReason_ERROR_REASON_RATE_LIMITED, Field: "token",
			Fix: "Correct the join token that agents at this address use, and call again after that.",
		}, fmt.Sprintf("joins from your address failed too often: wait %s", wait.Round(time.Millisecond)))
	}
	defer func() {
		if !failed {
			s.cfg.FailedJoins.Return(from, now.UnixMicro())
		}
	}()
	var region model.Region
	find := func(tx Tx) (model.JoinToken, error) {
		token, err := tx.GetJoinTokenByHash(model.HashToken(req.Token))
		switch {
		case errors.Is(err, model.ErrNotFound):
			return token, refused("the join token is unknown")
		case err != nil:
			return token, fmt.Errorf("look up join token: %w", err)
		case now.UnixMilli() >= token.ExpiresAt:
			return token, refused("the join token has expired")
		}
		return token, nil
	}
	// The token is first read without a write transaction, because that is cheaper and most invalid tokens are
	// unknown.
	err := s.cfg.Store.View(ctx, func(tx Tx) error {
		_, err := find(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.cfg.Store.Update(ctx, func(tx Tx) error {
		token, err := find(tx)
		if err != nil {
			return err
		}
		err = tx.UseJoinToken(token.ID, req.JoinId, now.UnixMilli())
		switch {
		case errors.Is(err, model.ErrConflict):
			return refused("the join token was used by another agent")
		case err != nil:
			return fmt.Errorf("use join token %s: %w", token.ID, err)
		}
		region, err = tx.GetRegion(token.RegionID)
		switch {
		case errors.Is(err, model.ErrNotFound):
			return refused("the join token's region no longer exists")
		case err != nil:
			return fmt.Errorf("read region %s: %w", token.RegionID, err)
		case token.CreatedAt < region.CredentialNotBefore:
			// Otherwise an agent with the token and its join id could get a new credential despite the revocation.
			return refused("the region's credentials were revoked after the join token was made")
		}
		return tx.InsertAudit(model.Audit{
			ID: ident.New("aud"), WorkspaceID: region.WorkspaceID, At: now.UnixMilli(),
			Actor: "agent", ActorID: req.JoinId, Source: from,
			Procedure: agentv1connect.AgentServiceJoinProcedure, ResourceKind: "region", ResourceID: region.ID,
			After: claimedText(req.GetAgent()),
		})
	})
	if err != nil {
		return nil, err
	}
	credential, err := s.issueCredential(region.ID, req.PublicKey, now)
	if err != nil {
		return nil, err
	}
	return &agentv1.JoinResponse{RegionId: region.ID, RegionName: region.Name, Credential: credential}, nil
}

// claimedText returns the agent's statements about itself, which are not verified.
func claimedText(agent *agentv1.AgentInfo) string {
	b, err := json.Marshal(map[string]string{"claimed_hostname": agent.GetHostname()})
	if err != nil {
		return "" // a string always encodes
	}
	return string(b)
}

// RenewCredential issues a new credential for a valid one. The new credential is bound to the key that the caller has
// proved. If the old credential is not bound, the new one is bound to the key in the request.
func (s *Service) RenewCredential(ctx context.Context, req *agentv1.RenewCredentialRequest) (*agentv1.RenewCredentialResponse, error) {
	region, err := s.callerRegion(ctx, agentv1connect.AgentServiceRenewCredentialProcedure)
	if err != nil {
		return nil, err
	}
	if err := checkKey(req.PublicKey); err != nil {
		return nil, err
	}
	key := req.PublicKey
	if id, _ := ctx.Value(identityKey{}).(Identity); len(id.Key) > 0 {
		key = id.Key
	}
	credential, err := s.issueCredential(region.ID, key, time.Now())
	if err != nil {
		return nil, err
	}
	s.noteCall(region, rpc.ClientOf(ctx), trail.Entry{
		Procedure: agentv1connect.AgentServiceRenewCredentialProcedure, ResourceKind: "region", ResourceID: region.ID, Outcome: trail.Done,
	})
	return &agentv1.RenewCredentialResponse{Credential: credential}, nil
}

// callerRegion reads the region of the call, and fails if the call's credential was revoked.
func (s *Service) callerRegion(ctx context.Context, procedure string) (region model.Region, err error) {
	id, ok := ctx.Value(identityKey{}).(Identity)
	if !ok {
		return region, rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "no agent credential: join the region first")
	}
	err = s.cfg.Store.View(ctx, func(tx Tx) error {
		region, err = tx.GetRegion(id.RegionID)
		return err
	})
	switch {
	case errors.Is(err, model.ErrNotFound):
		return region, rpc.Error(connect.CodeNotFound, windlassv1.ErrorReason_ERROR_REASON_NOT_FOUND, "", "the region no longer exists")
	case err != nil:
		return region, fmt.Errorf("read region %s: %w", id.RegionID, err)
	}
	if err := s.requireCurrent(region, id); err != nil {
		return region, err
	}
	s.compareSession(ctx, region, id, procedure, time.Now())
	return region, nil
}
