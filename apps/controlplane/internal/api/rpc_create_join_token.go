package api

import (
	"context"
	"fmt"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// defaultTokenTTL is how long a join token is valid by default.
const defaultTokenTTL = time.Hour

// CreateJoinToken makes a token with which one agent can join. Only this answer has the token's value.
func (a regionService) CreateJoinToken(ctx context.Context, req *windlassv1.CreateJoinTokenRequest) (*windlassv1.CreateJoinTokenResponse, error) {
	ttl := time.Duration(req.GetTtlSeconds()) * time.Second
	if ttl == 0 {
		ttl = defaultTokenTTL
	}
	value := newCredential(joinTokenPrefix)
	res, replayed, err := mutate(ctx, a.server, req, func(c *mutation) (*windlassv1.CreateJoinTokenResponse, error) {
		r, err := c.regions().managedRegion(req.GetRegion())
		if err != nil {
			return nil, err
		}
		t := model.JoinToken{
			ID: ident.New("jtk"), RegionID: r.ID, Hash: model.HashToken(value),
			CreatedAt: c.at, ExpiresAt: c.at + ttl.Milliseconds(),
		}
		if err := c.InsertJoinToken(t); err != nil {
			return nil, fmt.Errorf("create join token of region %s: %w", r.ID, err)
		}
		res := &windlassv1.CreateJoinTokenResponse{ExpiresAt: t.ExpiresAt}
		return res, c.auditChange("join_token", t.ID, nil, res)
	})
	if err == nil && !replayed {
		res.Token = value
	}
	return res, err
}
