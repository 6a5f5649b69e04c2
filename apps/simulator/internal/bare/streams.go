package bare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/rpc"
	agentv1 "github.com/windlass-run/windlass/proto/gen/windlass/agent/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/agent/v1/agentv1connect"
)

// Frames returns how many empty frames per second a Connect server sends to clients in the same process, over
// the given number of streams. It also returns how many streams per second are opened and ended. Dispatch by
// a control plane cannot be faster.
func Frames(ctx context.Context, window time.Duration, streams int) (frames, opened float64, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, fmt.Errorf("bare Connect: %w", err)
	}
	_, handler := agentv1connect.NewAgentServiceHandler(emptyFrames{})
	serving, stop := context.WithCancel(ctx)
	served := make(chan struct{})
	go func() {
		defer close(served)
		// Streams that are left at the end are cut on purpose.
		_ = rpc.Serve(serving, rpc.NewServer(rpc.ServerConfig{Handler: handler}), listener, time.Second)
	}()
	defer func() {
		stop()
		<-served
	}()

	client := rpc.NewHTTPClient(rpc.HTTPClientConfig{})
	defer client.CloseIdleConnections()
	agents := agentv1connect.NewAgentServiceClient(client, "http://"+listener.Addr().String())
	if frames, err = framesOf(ctx, agents, window, streams); err != nil {
		return 0, 0, err
	}
	opened, err = callRate(ctx, window, streams, func(ctx context.Context, _ int64) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := agents.Watch(ctx, &agentv1.WatchRequest{SessionId: onlyOne})
		if err != nil {
			return fmt.Errorf("bare Connect: %w", err)
		}
		if !stream.Receive() {
			return errors.Join(errors.New("bare Connect: a stream without a frame"), stream.Err())
		}
		cancel()
		_ = stream.Close() // cancelled just now
		return nil
	})
	return frames, opened, err
}

// framesOf returns the frames per second of a number of streams. The window begins when each stream has
// received its first frame.
func framesOf(ctx context.Context, agents agentv1connect.AgentServiceClient, window time.Duration, streams int) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var received atomic.Int64
	first := make(chan error, streams)
	var all sync.WaitGroup
	defer all.Wait()
	for range streams {
		all.Go(func() {
			stream, err := agents.Watch(ctx, &agentv1.WatchRequest{})
			if err == nil && !stream.Receive() {
				err = cmp.Or(stream.Err(), errors.New("a stream without a frame"))
			}
			first <- err
			if err != nil {
				return
			}
			for stream.Receive() {
				received.Add(1)
			}
			_ = stream.Close() // it ended with the window
		})
	}
	for range streams {
		if err := <-first; err != nil {
			cancel()
			return 0, fmt.Errorf("bare Connect: %w", err)
		}
	}
	received.Store(0)
	begin := time.Now()
	select {
	case <-time.After(window):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	frames := float64(received.Load()) / time.Since(begin).Seconds()
	cancel()
	return frames, nil
}

const onlyOne = "one frame"

// emptyFrames answers Watch with empty frames, as long as the client reads them.
type emptyFrames struct {
	agentv1connect.UnimplementedAgentServiceHandler
}

func (emptyFrames) Watch(ctx context.Context, req *agentv1.WatchRequest, out *connect.ServerStream[agentv1.WatchResponse]) error {
	for ctx.Err() == nil {
		if err := out.Send(&agentv1.WatchResponse{}); err != nil {
			return err
		}
		if req.SessionId == onlyOne {
			<-ctx.Done()
		}
	}
	return errors.New("the reader left")
}
