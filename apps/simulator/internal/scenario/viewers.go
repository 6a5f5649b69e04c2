package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/simulator/internal/child"
	"github.com/windlass-run/windlass/apps/simulator/internal/testbed"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
	"github.com/windlass-run/windlass/proto/gen/windlass/v1/windlassv1connect"
)

const (
	// ViewersCommand runs the simulator's binary as the clients of a workspace that watch. Its argument and
	// its output lines are JSON: viewersConfig and viewersState. The environment has the keys.
	ViewersCommand = "run-viewers"
	// viewersKeys is the variable with the keys, separated by spaces, which are used in turn.
	viewersKeys = "WINDLASS_SIMULATOR_KEYS"

	watchedRegion = "watched"
	// watchesEach is the number of streams on a connection of HTTP/2.
	watchesEach = 200
	// dials is the number of streams that are opened at the same time.
	dials = 256
	// tells is the interval at which viewers write their state.
	tells = 50 * time.Millisecond
	// answerIn bounds the wait for the first try of a stream before the next stream is opened. A control
	// plane that slows a connection answers late.
	answerIn = time.Second
)

var watchedApp = testbed.App{Name: "watched", Regions: []string{watchedRegion}, Replicas: 1, Version: "v1"}

// viewersConfig is the configuration of viewers.
type viewersConfig struct {
	URL     string        `json:"url"`
	Streams int           `json:"streams"`
	Again   time.Duration `json:"again"`
	// Apps are the paths of the apps that streams watch, in turn. With Fleet, every second stream watches the fleet
	// instead, as open pages of the dashboard do.
	Apps  []string `json:"apps"`
	Fleet bool     `json:"fleet,omitempty"`
}

// viewersState is the state of viewers. Open counts open streams, Most is the highest value of Open, and
// Refused counts refused tries. Tried counts the streams whose first try was opened, was refused, or had no
// answer within answerIn.
type viewersState struct {
	Open    int64 `json:"open"`
	Most    int64 `json:"most"`
	Refused int64 `json:"refused"`
	Tried   int64 `json:"tried"`
}

// viewers is the process of the clients that watch.
type viewers struct {
	self   string
	config viewersConfig
	keys   []string
	state  atomic.Pointer[viewersState]
	cancel context.CancelFunc
	ended  <-chan struct{}
}

// newViewers creates the workspace, its app and its keys.
func (s *Watchers) newViewers(ctx context.Context, w *testbed.Testbed, self string) (*viewers, error) {
	made, err := controlplane.Bootstrap(ctx, controlplane.BootstrapConfig{
		MySQLDSN: w.Stack.DSN(), Workspace: "watchers", Regions: []string{watchedRegion},
	})
	if err != nil {
		return nil, err
	}
	owner := testbed.NewClient(w.URL(), made.APIKey)
	defer owner.Close()
	if _, err := owner.Apps.Deploy(ctx, &windlassv1.DeployRequest{Mutation: testbed.Mutation(), App: testbed.Path(watchedApp.Name), Spec: watchedApp.Spec()}); err != nil {
		return nil, fmt.Errorf("deploy the app that is watched: %w", err)
	}
	return startableViewers(ctx, self, made.APIKey, s.Keys, viewersConfig{URL: w.URL(), Streams: s.Streams, Again: s.Again, Apps: []string{testbed.Path(watchedApp.Name)}})
}

// startableViewers makes the keys of viewers with an owner's key.
func startableViewers(ctx context.Context, self, owner string, keys int, config viewersConfig) (*viewers, error) {
	access := windlassv1connect.NewAccessServiceClient(rpc.NewHTTPClient(rpc.HTTPClientConfig{}), config.URL,
		rpc.ClientOptions(rpc.ClientConfig{Token: func() string { return owner }, UserAgent: "windlass-simulator"})...)
	v := &viewers{self: self, config: config, cancel: func() {}}
	v.state.Store(&viewersState{})
	for i := range keys {
		key, err := access.CreateApiKey(ctx, &windlassv1.CreateApiKeyRequest{
			Mutation: testbed.Mutation(), Name: fmt.Sprint("watcher-", i), Role: windlassv1.Role_ROLE_VIEWER,
		})
		if err != nil {
			return nil, fmt.Errorf("make a key of a watcher: %w", err)
		}
		v.keys = append(v.keys, key.Value)
	}
	return v, nil
}

// openStreams opens the streams. It returns when the first try of each stream was opened, was refused, or had
// no answer within answerIn.
func (v *viewers) openStreams(ctx context.Context) error {
	config, err := json.Marshal(v.config)
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended, err := child.Start(running, v.self, []string{viewersKeys + "=" + strings.Join(v.keys, " ")}, v.readState, ViewersCommand, string(config))
	if err != nil {
		cancel()
		return fmt.Errorf("start the watchers: %w", err)
	}
	v.cancel, v.ended = cancel, ended
	return testbed.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		select {
		case <-ended:
			return false, errors.New("the watchers ended")
		default:
			return v.currentState().Tried >= int64(v.config.Streams), nil
		}
	}, func() string {
		return fmt.Sprintf("%d of %d streams were tried", v.currentState().Tried, v.config.Streams)
	})
}

func (v *viewers) currentState() viewersState { return *v.state.Load() }

func (v *viewers) readState(line string) {
	var state viewersState
	if err := json.Unmarshal([]byte(line), &state); err == nil { // a line that is cut short is the last one
		v.state.Store(&state)
	}
}

// stop ends the streams and their process. They may be opened again.
func (v *viewers) stop() {
	v.cancel()
	if v.ended != nil {
		<-v.ended
	}
	v.state.Store(&viewersState{})
}

// watching is the state of the viewers in their own process.
type watching struct {
	config                     viewersConfig
	clients                    []*testbed.Client
	open, most, refused, tried atomic.Int64
}

// Viewers opens streams until its standard input ends. It reopens each stream that was refused or has ended.
func Viewers(ctx context.Context, args []string) error {
	ctx, cancel, err := child.Become(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	v := &watching{}
	keys := strings.Fields(os.Getenv(viewersKeys))
	if len(args) != 1 || len(keys) == 0 {
		return fmt.Errorf("%s CONFIG: %d arguments, and %d keys in %s", ViewersCommand, len(args), len(keys), viewersKeys)
	}
	if err := json.Unmarshal([]byte(args[0]), &v.config); err != nil {
		return fmt.Errorf("%s: %w", ViewersCommand, err)
	}
	for i := range (v.config.Streams + watchesEach - 1) / watchesEach {
		v.clients = append(v.clients, testbed.NewClient(v.config.URL, keys[i%len(keys)]))
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { v.keepOpen(ctx) })
	out := json.NewEncoder(os.Stdout)
	for tick := time.Tick(tells); ; {
		if err := out.Encode(viewersState{Open: v.open.Load(), Most: v.most.Load(), Refused: v.refused.Load(), Tried: v.tried.Load()}); err != nil {
			cancel()
			return nil // the reading process has ended
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
	}
}

// keepOpen keeps the streams open until ctx ends.
func (v *watching) keepOpen(ctx context.Context) {
	slots := make(chan struct{}, dials)
	var all sync.WaitGroup
	defer all.Wait()
	for i := range v.config.Streams {
		all.Go(func() {
			slots <- struct{}{}
			first := sync.OnceFunc(func() { <-slots; v.tried.Add(1) })
			defer first()
			defer time.AfterFunc(answerIn, first).Stop()
			for ctx.Err() == nil {
				v.readStream(ctx, v.clients[i/watchesEach], i, first)
				first()
				select {
				case <-ctx.Done():
				case <-time.After(v.config.Again/2 + rand.N(v.config.Again)):
				}
			}
		})
	}
}

// countOpen counts an open stream.
func (v *watching) countOpen() {
	now := v.open.Add(1)
	for most := v.most.Load(); now > most; most = v.most.Load() {
		if v.most.CompareAndSwap(most, now) {
			return
		}
	}
}

// openedStream is a stream of any kind of message.
type openedStream interface {
	Receive() bool
	Err() error
	Close() error
}

// openStream opens the i-th stream.
func (v *watching) openStream(ctx context.Context, client *testbed.Client, i int) (openedStream, error) {
	if v.config.Fleet && i%2 == 1 {
		return client.Fleet.WatchFleet(ctx, &windlassv1.WatchFleetRequest{})
	}
	if v.config.Fleet {
		i /= 2
	}
	return client.Apps.WatchApp(ctx, &windlassv1.WatchAppRequest{App: v.config.Apps[i%len(v.config.Apps)]})
}

// readStream reads the i-th stream until it ends, and calls first once it is open.
func (v *watching) readStream(ctx context.Context, client *testbed.Client, i int, first func()) {
	s, err := v.openStream(ctx, client, i)
	if err == nil {
		counted := false
		for s.Receive() {
			if !counted {
				counted = true
				v.countOpen()
				first()
			}
		}
		if counted {
			v.open.Add(-1)
		}
		err = errors.Join(s.Err(), s.Close())
	}
	if err != nil && ctx.Err() == nil { // for any reason
		v.refused.Add(1)
	}
}
