package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// maxAnswer is the maximum size of an answer, in bytes.
const maxAnswer = 1 << 20

// requests matches answers to requests. It is best effort: requests are lost when either side restarts.
type requests struct {
	mu      sync.Mutex
	pending map[string]*pending
}

type pending struct {
	region string
	data   []byte
	done   chan struct{}
	err    error
}

func newRequests() *requests { return &requests{pending: map[string]*pending{}} }

// Ask sends a request to the region's agent and waits for its answer until ctx ends. It fails with
// model.ErrAgentUnreachable if no agent is connected, and with model.ErrNoAnswer if the request was sent and no
// answer came.
func (s *Service) Ask(ctx context.Context, region string, req *agentv1.Request) ([]byte, error) {
	s.mu.Lock()
	st := s.streams[region]
	s.mu.Unlock()
	if st == nil {
		return nil, fmt.Errorf("ask region %s: %w", region, model.ErrAgentUnreachable)
	}
	req.Id = ident.New("req")
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil, errors.New("dispatch: Ask needs a context with a deadline")
	}
	req.Deadline = deadline.UnixMilli()

	p := &pending{region: region, done: make(chan struct{})}
	s.requests.mu.Lock()
	s.requests.pending[req.Id] = p
	s.requests.mu.Unlock()
	defer func() {
		s.requests.mu.Lock()
		delete(s.requests.pending, req.Id)
		s.requests.mu.Unlock()
	}()

	select {
	case st.requests <- req:
	case <-ctx.Done():
		return nil, fmt.Errorf("ask region %s: %w", region, model.ErrAgentUnreachable)
	}
	select {
	case <-p.done:
		return p.data, p.err
	case <-ctx.Done():
		return nil, fmt.Errorf("ask region %s: %w", region, model.ErrNoAnswer)
	}
}

// UploadLogs accepts a chunk of an answer. An answer whose request has ended is accepted and dropped, so that the
// agent does not retry it.
func (s *Service) UploadLogs(ctx context.Context, req *agentv1.UploadLogsRequest) (*agentv1.UploadLogsResponse, error) {
	region, _, ok := s.cfg.Caller(ctx)
	if !ok {
		return nil, rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "no agent credential: join the region first")
	}
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	p := s.requests.pending[req.RequestId]
	if p == nil || p.region != region {
		return &agentv1.UploadLogsResponse{}, nil
	}
	if room := maxAnswer - len(p.data); room > 0 {
		p.data = append(p.data, req.Data[:min(room, len(req.Data))]...)
	}
	if req.End {
		if req.Error != "" {
			p.err = fmt.Errorf("the agent answered: %s", req.Error)
		}
		delete(s.requests.pending, req.RequestId)
		close(p.done)
	}
	return &agentv1.UploadLogsResponse{}, nil
}
