package bare

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/ident"
	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Reporter is a region that only reports: it uses the protocol of an agent, with prepared reports. One report
// at a time is in flight.
type Reporter struct {
	http     *http.Client
	client   agentv1connect.AgentServiceClient
	stream   *connect.ServerStreamForClient[agentv1.WatchResponse]
	stop     context.CancelFunc
	ended    chan struct{}
	hello    *agentv1.Hello
	session  string
	sequence int64
	// reports has a report for each deployment. They are sent in turn.
	reports [][]*agentv1.InstanceState
	next    int
}

// NewReporter joins the token's region, opens a stream, and reports a complete inventory: the replicas of
// each deployment.
func NewReporter(ctx context.Context, url, token string, deployments []string, replicas int) (_ *Reporter, err error) {
	r := &Reporter{http: rpc.NewHTTPClient(rpc.HTTPClientConfig{}), session: ident.New("ses"), ended: make(chan struct{})}
	credential := ""
	r.client = agentv1connect.NewAgentServiceClient(r.http, url, rpc.ClientOptions(rpc.ClientConfig{
		Token: func() string { return credential }, UserAgent: "windlass-simulator", ReadMaxBytes: 32 << 20,
	})...)
	info := &agentv1.AgentInfo{Version: "bare", Runtime: "simulated", Hostname: "localhost"}
	joined, err := r.client.Join(ctx, &agentv1.JoinRequest{Token: token, Agent: info, JoinId: ident.New("join")})
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	credential = joined.Credential.Value
	streaming, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	if r.stream, err = r.client.Watch(streaming, &agentv1.WatchRequest{SessionId: r.session, Agent: info}); err != nil {
		stop()
		return nil, fmt.Errorf("watch: %w", err)
	}
	if !r.stream.Receive() || r.stream.Msg().GetHello() == nil {
		stop()
		return nil, errors.Join(errors.New("watch: no hello"), r.stream.Err())
	}
	r.hello = r.stream.Msg().GetHello()
	go func() {
		defer close(r.ended)
		for r.stream.Receive() { // the reporter ignores what it receives
		}
	}()
	for _, id := range deployments {
		report := make([]*agentv1.InstanceState, replicas)
		for i := range report {
			now := time.Now().UnixMilli()
			report[i] = &agentv1.InstanceState{
				Id: ident.New("ins"), DeploymentId: id, Role: "main", Group: int32(i), Status: windlassv1.InstanceStatus_INSTANCE_STATUS_READY,
				Address: "127.0.0.1:1", RuntimeName: fmt.Sprintf("bare-%d", i), StartedAt: now, ReadyAt: now,
			}
		}
		r.reports = append(r.reports, report)
	}
	for i := range r.reports {
		req := &agentv1.ReportRequest{InventoryBegin: i == 0, Instances: r.reports[i]}
		if i == len(r.reports)-1 {
			req.InventoryEnd, req.InventorySince = true, 1
		}
		if err := r.send(ctx, req); err != nil {
			return nil, errors.Join(fmt.Errorf("report the inventory: %w", err), r.Close())
		}
	}
	return r, nil
}

func (r *Reporter) send(ctx context.Context, req *agentv1.ReportRequest) error {
	r.sequence++
	req.SessionId, req.Epoch, req.Fence, req.Sequence = r.session, r.hello.Epoch, r.hello.Fence, r.sequence
	for {
		_, err := r.client.Report(ctx, req)
		switch {
		case err == nil:
			return nil
		case connect.CodeOf(err) == connect.CodeUnavailable:
		case connect.CodeOf(err) == connect.CodeResourceExhausted:
			// The control plane asks the reporter to wait. The reporter tries again almost at once, so that
			// the control plane always has reports to store.
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Report sends one report, in which every instance of a deployment has changed.
func (r *Reporter) Report(ctx context.Context) error {
	report := r.reports[r.next%len(r.reports)]
	r.next++
	for _, i := range report {
		i.Restarts++
	}
	return r.send(ctx, &agentv1.ReportRequest{Instances: report})
}

// Restarts returns the sum of the instances' restart counters.
func (r *Reporter) Restarts() int64 {
	n := int64(0)
	for _, report := range r.reports {
		for _, i := range report {
			n += int64(i.Restarts)
		}
	}
	return n
}

// Close ends the stream.
func (r *Reporter) Close() error {
	r.stop()
	<-r.ended
	_ = r.stream.Close() // cancelled just now
	r.http.CloseIdleConnections()
	return nil
}
