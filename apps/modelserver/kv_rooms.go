package modelserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Bootstrap configures how an SGLang prefill server sends the KV cache of a prompt to a decode server. Both servers get
// the request at the same time. The request has the prefill server's bootstrap address, and the number of a room in
// which the servers meet.
//
//	router --bootstrap_host, _port, _room--> prefill   waits in the room
//	       --the same----------------------> decode --bootstrap port--> prefill
type Bootstrap struct {
	// Port is the prefill server's bootstrap port. 0 means any free port.
	Port int
	// Timeout is how long one server waits for the other. Default: 300 s.
	Timeout time.Duration
}

// kvRooms has the rooms in which the prefill server and the decode server of a request meet. On a decode server, only
// its settings are used.
type kvRooms struct {
	cfg           Bootstrap
	host          string
	compatibility string
	version       string
	// loses reports whether transfers are lost, for the fault LoseTransfers.
	loses func() bool
	port  int

	mu    sync.Mutex
	rooms map[int64]*kvRoom
}

// kvRoom is the room of one request. tokens may be read when offered is closed.
type kvRoom struct {
	tokens  []string
	offered chan struct{}
	here    bool
	fetched chan error // the result of the transfer, sent once
}

type kvEnter struct {
	Room          int64  `json:"room"`
	Compatibility string `json:"compatibility"`
}

func newKVRooms(cfg *Config, loses func() bool) *kvRooms {
	b := cfg.Engine.Bootstrap
	b.Timeout = cmp.Or(b.Timeout, 300*time.Second)
	return &kvRooms{
		cfg: b, host: cfg.Host, rooms: map[int64]*kvRoom{}, version: cfg.VersionLabel, loses: loses,
		compatibility: fmt.Sprintf("sglang %s, version %s, model %s, tensor parallel size %d", cmp.Or(cfg.EngineVersion, sglangVersion), cfg.VersionLabel, cfg.Engine.ModelPath, cfg.Engine.Tensor),
	}
}

// findOrMake returns the room with the number. It makes the room if it does not exist.
func (k *kvRooms) findOrMake(number int64) *kvRoom {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.rooms[number]
	if r == nil {
		r = &kvRoom{offered: make(chan struct{}), fetched: make(chan error, 1)}
		k.rooms[number] = r
	}
	return r
}

func (k *kvRooms) removeRoom(number int64, r *kvRoom) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rooms[number] == r {
		delete(k.rooms, number)
	}
}

// offerTokens puts tokens into a room and waits until the decode server has fetched them.
func (k *kvRooms) offerTokens(ctx context.Context, number int64, tokens []string) error {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	r := k.findOrMake(number)
	k.mu.Lock()
	taken := r.here
	if !taken {
		r.here, r.tokens = true, tokens
		close(r.offered)
	}
	k.mu.Unlock()
	if taken {
		return fmt.Errorf("bootstrap room %d is in use", number)
	}
	defer k.removeRoom(number, r)
	select {
	case err := <-r.fetched:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no decode server came to bootstrap room %d: %w", number, context.Cause(ctx))
	}
}

// listenBootstrap opens the bootstrap port.
func (k *kvRooms) listenBootstrap(ctx context.Context) (l net.Listener, err error) {
	l, k.port, err = listenKV(ctx, k.host, k.cfg.Port, "decode servers", "--disaggregation-bootstrap-port")
	return l, err
}

// serveDecoders answers decode servers until ctx ends and l is closed.
func (k *kvRooms) serveDecoders(ctx context.Context, l net.Listener) {
	serveKV(l, func(c net.Conn) {
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		defer stop()
		k.answerDecoder(ctx, c)
	})
}

func (k *kvRooms) answerDecoder(ctx context.Context, c net.Conn) {
	var enter kvEnter
	if !readKV(c, &enter) {
		return
	}
	r := k.findOrMake(enter.Room)
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	select {
	case <-r.offered:
	case <-ctx.Done():
		k.removeRoom(enter.Room, r)
		return
	}
	answer := kvBlocks{Blocks: [][]string{r.tokens}, Version: k.version}
	if enter.Compatibility != k.compatibility {
		answer = incompatibleCaches(k.compatibility, enter.Compatibility)
	}
	_ = c.SetDeadline(time.Now().Add(kvExchangeTimeout))
	err := errTransferLost
	if !k.loses() {
		if err = json.NewEncoder(c).Encode(answer); answer.Error != "" {
			err = answer.errorOf()
		}
	}
	select {
	case r.fetched <- err:
	default: // another decode server has sent a result
	}
}

// fetchTokens fetches the tokens of a room from a prefill server, and the server's version.
func (k *kvRooms) fetchTokens(ctx context.Context, host string, port int, number int64) (tokens []string, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timeout)
	defer cancel()
	ask := kvEnter{Room: number, Compatibility: k.compatibility}
	return fetchKV(ctx, host, port, ask, fmt.Sprintf("the prefill server of bootstrap room %d", number))
}

// handOverPrompt offers a request's prompt on a prefill server, and fetches it on a decode server. It fails if the
// other server does not come to the room, or has another prompt or cache layout. A decode server sets the header with
// the version of the prefill server.
func (s *Server) handOverPrompt(ctx context.Context, w http.ResponseWriter, req *sampling, p plan) *apiError {
	if s.rooms == nil {
		return nil
	}
	if req.BootstrapRoom == nil || s.cfg.Engine.Role == sglangDecode && req.BootstrapHost == "" {
		return badRequest("bootstrap_room", "Disaggregated request received without bootstrap room id")
	}
	var err error
	if s.cfg.Engine.Role == sglangPrefill {
		err = s.rooms.offerTokens(ctx, *req.BootstrapRoom, p.prompt)
	} else {
		port := 8998
		if req.BootstrapPort != nil {
			port = *req.BootstrapPort
		}
		var tokens []string
		var version string
		tokens, version, err = s.rooms.fetchTokens(ctx, req.BootstrapHost, port, *req.BootstrapRoom)
		setPrefillVersion(w, version)
		if err == nil && !slices.Equal(tokens, p.prompt) {
			err = fmt.Errorf("the room has another prompt: %d tokens, but this prompt has %d", len(tokens), len(p.prompt))
		}
	}
	if err != nil {
		s.log.Error("KV transfer failed", "room", *req.BootstrapRoom, "error", err)
		return transferError("kv_transfer_failed", fmt.Sprintf("KVTransferError(bootstrap_room=%d)", *req.BootstrapRoom), err)
	}
	return nil
}
