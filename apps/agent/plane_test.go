package agent_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// plane is a control plane for the agents of one region that should run nothing. It has join
// tokens, which are valid for one join, and credentials, sessions and fences.
type plane struct {
	agentv1connect.UnimplementedAgentServiceHandler
	url, region string

	mu sync.Mutex
	// tokens has every token that was made, with the id of the join that used it. The id is empty
	// for an unused token.
	tokens map[string]string
	// spent has the tokens that were used, in order.
	spent       []string
	credentials []string
	fence       int64
	// features has the features of the agent that opened the newest stream.
	features []string
	// streams has the connected sessions, by fence.
	streams map[int64]string
}

func startPlane(t *testing.T, region string) *plane {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &plane{url: "http://" + listener.Addr().String(), region: region, tokens: map[string]string{}, streams: map[int64]string{}}
	_, handler := agentv1connect.NewAgentServiceHandler(p)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.NewServer(rpc.ServerConfig{Handler: handler}), listener, 5*time.Second)
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return p
}

func (p *plane) newToken() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	token := fmt.Sprintf("wlj_%d", len(p.tokens)+1)
	p.tokens[token] = ""
	return token
}

// use marks a token as used by an agent that no longer exists.
func (p *plane) use(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[token] = "join_of_somebody_else"
	p.spent = append(p.spent, token)
}

// used returns the tokens that were used, in order.
func (p *plane) used() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.spent...)
}

func (p *plane) lastCredential() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.credentials[len(p.credentials)-1]
}

func (p *plane) announced() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.features
}

// only waits until exactly one stream is open, and returns its session.
func (p *plane) only(t *testing.T) string {
	t.Helper()
	var session string
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range p.streams {
			session = s
		}
		return len(p.streams) == 1
	}, patience, 20*time.Millisecond, "there is not exactly one stream")
	return session
}

func (p *plane) Join(_ context.Context, req *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := func(why string) error {
		return rpc.Error(connect.CodePermissionDenied, windlassv1.ErrorReason_ERROR_REASON_JOIN_TOKEN_INVALID, "token", why+": make a new one with `windlass region token`")
	}
	by, known := p.tokens[req.GetToken()]
	switch {
	case !known:
		return nil, refused("the join token is unknown")
	case by != "" && by != req.GetJoinId():
		return nil, refused("the join token was used by another agent")
	case by == "":
		p.spent = append(p.spent, req.GetToken())
	}
	p.tokens[req.GetToken()] = req.GetJoinId()
	value := fmt.Sprintf("credential-%s-%d", p.region, len(p.credentials)+1)
	p.credentials = append(p.credentials, value)
	return &agentv1.JoinResponse{
		RegionId: "reg_" + p.region, RegionName: p.region,
		Credential: &agentv1.Credential{Value: value, ExpiresAt: time.Now().Add(time.Hour).UnixMilli()},
	}, nil
}

// caller checks the credential of the request.
func (p *plane) caller(ctx context.Context) error {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	for _, c := range p.credentials {
		if info.RequestHeader().Get("Authorization") == "Bearer "+c {
			return nil
		}
	}
	return rpc.Error(connect.CodeUnauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "", "no agent credential: join the region first")
}

func (p *plane) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	p.mu.Lock()
	if err := p.caller(ctx); err != nil {
		p.mu.Unlock()
		return err
	}
	p.fence++
	fence := p.fence
	p.streams[fence] = req.GetSessionId()
	p.features = req.GetAgent().GetFeatures()
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, fence)
	}()
	frames := []*agentv1.WatchResponse{
		{Frame: &agentv1.WatchResponse_Hello{Hello: &agentv1.Hello{Epoch: 1, Fence: fence, LeaseTtl: durationpb.New(15 * time.Second)}}},
		{Frame: &agentv1.WatchResponse_SnapshotBegin{SnapshotBegin: &agentv1.SnapshotBegin{Epoch: 1, Revision: 1, Chain: []byte("chain")}}},
		{Frame: &agentv1.WatchResponse_SnapshotEnd{SnapshotEnd: &agentv1.SnapshotEnd{}}},
	}
	for {
		for _, f := range frames {
			if err := out.Send(f); err != nil {
				return err
			}
		}
		frames = []*agentv1.WatchResponse{{Frame: &agentv1.WatchResponse_Bookmark{Bookmark: &agentv1.Bookmark{Epoch: 1, Revision: 1, Chain: []byte("chain")}}}}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func (p *plane) Report(ctx context.Context, req *agentv1.ReportRequest) (*agentv1.ReportResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.caller(ctx); err != nil {
		return nil, err
	}
	if req.GetFence() != p.fence {
		return nil, rpc.Error(connect.CodeFailedPrecondition, windlassv1.ErrorReason_ERROR_REASON_STALE_SESSION, "fence", "the session is no longer the region's current one: watch again")
	}
	return &agentv1.ReportResponse{LeaseTtl: durationpb.New(15 * time.Second)}, nil
}

// proxy forwards connections until it is switched off.
type proxy struct {
	address string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func startProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{address: listener.Addr().String(), conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		p.off()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil || !p.pass(in, out) {
				_ = in.Close()
				if out != nil {
					_ = out.Close()
				}
				continue
			}
			wg.Go(func() { _, _ = io.Copy(in, out); p.close(in, out) })
			wg.Go(func() { _, _ = io.Copy(out, in); p.close(in, out) })
		}
	})
	return p
}

func (p *proxy) pass(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = !p.cut
	}
	return !p.cut
}

func (p *proxy) close(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// off closes all connections and refuses new ones.
func (p *proxy) off() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) on() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}
