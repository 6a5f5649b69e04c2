package gateway_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/windlass-run/windlass/apps/gateway"
	gatewayv1 "github.com/windlass-run/windlass/proto/gen/windlass/gateway/v1"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// grpcInstance answers as the request says. It sends the metadata "echo" back in the header and the trailer.
type grpcInstance struct {
	grpc_testing.UnimplementedTestServiceServer

	// The instance receives from next before each message of a stream. gone gets the errors of streams that were
	// broken off.
	next chan struct{}
	gone chan error
}

func startGRPC(t *testing.T) (_ *grpcInstance, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	i := &grpcInstance{next: make(chan struct{}), gone: make(chan error, 1)}
	server := grpc.NewServer()
	grpc_testing.RegisterTestServiceServer(server, i)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-ended)
	})
	return i, l.Addr().String()
}

func echoed(ctx context.Context) metadata.MD {
	in, _ := metadata.FromIncomingContext(ctx)
	out := metadata.MD{}
	for _, name := range []string{"echo", "echo-bin", "windlass-handed-over"} {
		out[name] = in[name]
	}
	return out
}

func outcome(s *grpc_testing.EchoStatus) error {
	if s.GetCode() == 0 {
		return nil
	}
	st, err := status.New(codes.Code(s.Code), s.Message).WithDetails(s)
	if err != nil {
		return err
	}
	return st.Err()
}

func (i *grpcInstance) UnaryCall(ctx context.Context, req *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	if req.ResponseStatus.GetMessage() == "wait" {
		<-ctx.Done()
		i.gone <- ctx.Err()
		return nil, ctx.Err()
	}
	if err := grpc.SetTrailer(ctx, echoed(ctx)); err != nil {
		return nil, err
	}
	if err := outcome(req.ResponseStatus); err != nil {
		return nil, err // an answer of trailers only
	}
	if err := grpc.SetHeader(ctx, echoed(ctx)); err != nil {
		return nil, err
	}
	return &grpc_testing.SimpleResponse{Payload: req.Payload}, nil
}

func (i *grpcInstance) StreamingOutputCall(req *grpc_testing.StreamingOutputCallRequest, out grpc.ServerStreamingServer[grpc_testing.StreamingOutputCallResponse]) error {
	out.SetTrailer(echoed(out.Context()))
	for _, p := range req.ResponseParameters {
		select {
		case <-i.next:
		case <-out.Context().Done():
			i.gone <- out.Context().Err()
			return out.Context().Err()
		}
		if err := out.Send(&grpc_testing.StreamingOutputCallResponse{Payload: &grpc_testing.Payload{Body: make([]byte, p.Size)}}); err != nil {
			return err
		}
	}
	return outcome(req.ResponseStatus)
}

func (i *grpcInstance) FullDuplexCall(both grpc.BidiStreamingServer[grpc_testing.StreamingOutputCallRequest, grpc_testing.StreamingOutputCallResponse]) error {
	both.SetTrailer(echoed(both.Context()))
	for {
		req, err := both.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := both.Send(&grpc_testing.StreamingOutputCallResponse{Payload: req.Payload}); err != nil {
			return err
		}
	}
}

// grpc returns a grpc-go client of the region's app.
func (h *harness) grpc(t *testing.T) grpc_testing.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(h.url, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("echo.local"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_testing.NewTestServiceClient(conn)
}

// Calls between grpc-go's client and server have the same results on every path: through the gateway of the app's
// region, through the gateway of another region with or without TLS in between, and through the gateway of a region
// without the app.
func TestGRPC_WithoutTLSIsTheSameAcrossRegions(t *testing.T) { //nolint:tparallel // its subtests share gateways
	t.Parallel()
	certs := t.TempDir()
	certify(t, certs)
	trusting := func(c *gateway.Config) { c.NeighbourRoots = filepath.Join(certs, "cert.pem") }
	here, secure, nowhere := start(t, nil), start(t, trusting), start(t, nil)
	there := start(t, func(c *gateway.Config) {
		c.TLSListen, c.TLSCert, c.TLSKey = "127.0.0.1:0", filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
	})
	instance, address := startGRPC(t)
	app := crossing(failover, address)
	app.Policy.RequireApiKey, app.ApiKeys = true, []*gatewayv1.ApiKey{apiKey("mobile", "secret", time.Time{})}
	there.put(t, app)
	empty := func() *gatewayv1.AppRoutes {
		out := crossing(failover)
		out.Policy.RequireApiKey, out.ApiKeys = true, app.ApiKeys
		return out
	}
	here.put(t, empty())
	here.around(t, "there", there.url)
	secure.put(t, empty())
	secure.around(t, "there", "https://"+there.gateway.Addresses()[1].String())
	nowhere.look(t, &gatewayv1.Neighbours{Region: "nowhere", Whole: true, Apps: []*gatewayv1.AppNeighbours{{
		AppId: "app_1", AppName: "echo", Hosts: []string{"echo.local"}, Regions: []*gatewayv1.Neighbour{{Region: "there", GatewayUrl: there.url}},
	}}})
	for name, test := range map[string]struct {
		at     *harness
		region []string
	}{
		"in the region":                 {there, nil},
		"from another":                  {here, []string{"there"}},
		"from another region by TLS":    {secure, []string{"there"}},
		"from a region without the app": {nowhere, []string{"there"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := test.at.grpc(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			binary := string([]byte{0, 1, 255})
			ctx = metadata.AppendToOutgoingContext(ctx, "echo", "a", "echo", "b", "echo-bin", binary, "authorization", "Bearer secret")
			comes := func(md metadata.MD) {
				t.Helper()
				require.Equal(t, []string{"a", "b"}, md["echo"])
				require.Equal(t, []string{binary}, md["echo-bin"])
				require.Empty(t, md["windlass-handed-over"])
			}
			var header, trailer metadata.MD
			for _, size := range []int{0, 10, 1 << 20} {
				for _, options := range [][]grpc.CallOption{nil, {grpc.UseCompressor(gzip.Name)}} {
					want := &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte(strings.Repeat("x", size))}}
					got, err := client.UnaryCall(ctx, want, append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
					require.NoError(t, err)
					require.Equal(t, string(want.Payload.Body), string(got.Payload.Body))
					comes(header)
					comes(trailer)
					require.Equal(t, test.region, header["windlass-region"])
				}
			}

			// The client gets the instance's error with its message and details.
			failed := &grpc_testing.EchoStatus{Code: int32(codes.FailedPrecondition), Message: "no: 100% \"sure\"\nä"}
			_, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseStatus: failed}, grpc.Header(&header), grpc.Trailer(&trailer))
			isFailed := func(err error) {
				t.Helper()
				st := status.Convert(err)
				require.Equal(t, codes.FailedPrecondition, st.Code(), "%v", err)
				require.Equal(t, failed.Message, st.Message())
				require.Len(t, st.Details(), 1)
				require.Equal(t, failed.Message, st.Details()[0].(*grpc_testing.EchoStatus).Message)
			}
			isFailed(err)
			comes(trailer)

			// Messages of a stream come one by one, and the trailer comes with the end.
			three := []*grpc_testing.ResponseParameters{{Size: 1}, {Size: 100_000}, {Size: 3}}
			for _, end := range []*grpc_testing.EchoStatus{nil, failed} {
				stream, err := client.StreamingOutputCall(ctx, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: three, ResponseStatus: end})
				require.NoError(t, err)
				for _, p := range three {
					instance.next <- struct{}{}
					got, err := stream.Recv()
					require.NoError(t, err)
					require.Len(t, got.Payload.Body, int(p.Size))
				}
				_, err = stream.Recv()
				if end == nil {
					require.ErrorIs(t, err, io.EOF)
				} else {
					isFailed(err)
				}
				comes(stream.Trailer())
				header, err := stream.Header()
				require.NoError(t, err)
				require.Equal(t, test.region, header["windlass-region"])
			}

			// Both directions of a stream work at the same time.
			both, err := client.FullDuplexCall(ctx)
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, both.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: []byte("ping")}}))
				got, err := both.Recv()
				require.NoError(t, err)
				require.Equal(t, "ping", string(got.Payload.Body))
			}
			require.NoError(t, both.CloseSend())
			_, err = both.Recv()
			require.ErrorIs(t, err, io.EOF)
			comes(both.Trailer())

			// If the client cancels a call, the instance's call is cancelled, too.
			leaving, leave := context.WithCancel(ctx)
			stream, err := client.StreamingOutputCall(leaving, &grpc_testing.StreamingOutputCallRequest{ResponseParameters: three})
			require.NoError(t, err)
			instance.next <- struct{}{}
			_, err = stream.Recv()
			require.NoError(t, err)
			leave()
			_, err = stream.Recv()
			require.Equal(t, codes.Canceled, status.Code(err))
			require.ErrorIs(t, <-instance.gone, context.Canceled)
			soon, cancelSoon := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancelSoon()
			_, err = client.UnaryCall(soon, &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Message: "wait"}})
			// The instance knows the deadline, too, and breaks off the call itself. A gateway that does not know yet that
			// the client gave up answers then that the instance is unavailable.
			require.Contains(t, []codes.Code{codes.DeadlineExceeded, codes.Unavailable}, status.Code(err), "%v", err)
			require.Error(t, <-instance.gone)

			// A request without a key is refused.
			_, err = client.UnaryCall(metadata.NewOutgoingContext(ctx, metadata.Pairs("echo", "a")), &grpc_testing.SimpleRequest{})
			isOurs(t, err, codes.Unauthenticated, windlassv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED, "no API key")
		})
	}

	// Without a ready instance the code is Unavailable, after which clients try again.
	there.put(t, empty())
	for _, r := range []*harness{here, secure, nowhere, there} {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer secret"), patience)
		_, err := r.grpc(t).UnaryCall(ctx, &grpc_testing.SimpleRequest{})
		cancel()
		isOurs(t, err, codes.Unavailable, windlassv1.ErrorReason_ERROR_REASON_UNAVAILABLE, "no instance")
	}
}

// isOurs requires that err is an error of the gateway itself, with the same message and detail as in JSON.
func isOurs(t *testing.T, err error, code codes.Code, reason windlassv1.ErrorReason, says string) {
	t.Helper()
	st := status.Convert(err)
	require.Equal(t, code, st.Code(), "%v", err)
	require.Contains(t, st.Message(), says)
	require.Len(t, st.Details(), 1)
	require.Equal(t, reason, st.Details()[0].(*windlassv1.ErrorDetail).Reason)
}

// Metrics count a call by its gRPC status, which a server may send in trailers only or after messages.
func TestGRPC_CallsCountByTheirStatus(t *testing.T) {
	r := start(t, nil)
	instance, address := startGRPC(t)
	r.put(t, echo(address))
	client := r.grpc(t)
	for _, code := range []codes.Code{codes.OK, codes.NotFound, codes.Internal, codes.Unavailable, codes.ResourceExhausted, 99} {
		said := &grpc_testing.EchoStatus{Code: int32(code), Message: "as asked"}
		_, err := client.UnaryCall(t.Context(), &grpc_testing.SimpleRequest{ResponseStatus: said})
		require.Equal(t, code, status.Code(err))
		stream, err := client.StreamingOutputCall(t.Context(), &grpc_testing.StreamingOutputCallRequest{
			ResponseParameters: []*grpc_testing.ResponseParameters{{Size: 1}}, ResponseStatus: said,
		})
		require.NoError(t, err)
		instance.next <- struct{}{}
		_, err = stream.Recv()
		require.NoError(t, err)
		if _, err = stream.Recv(); !errors.Is(err, io.EOF) {
			require.Equal(t, code, status.Code(err))
		}
	}
	for code, n := range map[string]float64{"200": 2, "404": 2, "500": 4, "503": 2, "429": 2} {
		r.untilSeries(t, "windlass_gateway_requests_total app=echo,app_id=app_1,code="+code+",version=1,windlass_deployment=dep_1", n)
	}
}

// A client may go away at any moment while the gateway waits for its next message. The gateway must not panic.
func TestGRPC_ClientsThatLeaveStreamsDoNotEndTheGateway(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	_, address := startGRPC(t)
	r.put(t, echo(address))
	client := r.grpc(t)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				both, err := client.FullDuplexCall(ctx)
				for range (n + i) % 4 {
					if err == nil {
						err = both.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: []byte("ping")}})
					}
					if err == nil && n%2 == 0 {
						_, err = both.Recv()
					}
				}
				cancel()
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{})
	require.NoError(t, err)
}
