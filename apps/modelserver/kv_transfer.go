package modelserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// KVTransfer configures how one vLLM server sends the KV cache of a prompt to another, as vLLM's NixlConnector does. The
// answer to a prefill request has the address of the blocks. The decode server fetches the blocks from this address.
//
//	router --max_tokens 1, do_remote_decode--> prefill   holds the blocks
//	       <--remote_engine_id, _block_ids, _host, _port--
//	router --do_remote_prefill and the rest--> decode --side channel--> prefill
//
// Blocks can be fetched once. They are dropped after Timeout.
type KVTransfer struct {
	// EngineID is the ID of the process. Default: a random ID.
	EngineID string
	// Host and Port are the address of the side channel. Port 0 means any free port.
	Host string
	Port int
	// Timeout is how long blocks are held if they are not fetched. Default: 480 s.
	Timeout time.Duration
	// Enabled means that the server opens a side channel.
	Enabled bool
}

// The number of tokens in a block, and the maximum number of held blocks.
const (
	kvBlockTokens = 16
	kvHeldBlocks  = 65536
)

// kvParams is the field kv_transfer_params of requests and answers.
type kvParams struct {
	DoRemoteDecode  bool   `json:"do_remote_decode"`
	DoRemotePrefill bool   `json:"do_remote_prefill"`
	RemoteEngineID  string `json:"remote_engine_id,omitempty"`
	RemoteRequestID string `json:"remote_request_id,omitempty"`
	RemoteBlockIDs  []int  `json:"remote_block_ids,omitempty"`
	RemoteHost      string `json:"remote_host,omitempty"`
	RemotePort      int    `json:"remote_port,omitempty"`
	TPSize          int    `json:"tp_size,omitempty"`
}

// kvFetch asks for blocks on the side channel.
type kvFetch struct {
	EngineID string `json:"engine_id"`
	// Compatibility must be the same on both sides.
	Compatibility string `json:"compatibility"`
	BlockIDs      []int  `json:"block_ids"`
}

// kvStore holds blocks until they are fetched.
type kvStore struct {
	cfg           KVTransfer
	engineID      string
	compatibility string
	version       string
	// loses reports whether transfers are lost, for the fault LoseTransfers.
	loses func() bool
	port  int

	mu     sync.Mutex
	next   int // number of the last block
	blocks map[int]kvBlock
}

type kvBlock struct {
	tokens  []string
	expires time.Time
}

func newKVStore(cfg *Config, engineID string, loses func() bool) *kvStore {
	t := cfg.Engine.KVTransfer
	t.Timeout = cmp.Or(t.Timeout, 480*time.Second)
	return &kvStore{
		cfg: t, engineID: cmp.Or(t.EngineID, engineID), blocks: map[int]kvBlock{}, version: cfg.VersionLabel, loses: loses,
		// As in NIXL's handshake, everything that decides the cache's layout must be the same.
		compatibility: fmt.Sprintf("vllm %s, version %s, model %s, tensor parallel size %d", cmp.Or(cfg.EngineVersion, vllmVersion), cfg.VersionLabel, cfg.Engine.ModelPath, cfg.Engine.Tensor),
	}
}

// holdTokens keeps a prompt's tokens and returns the numbers of their blocks.
func (k *kvStore) holdTokens(tokens []string, now time.Time) (ids []int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, b := range k.blocks {
		if now.After(b.expires) {
			delete(k.blocks, id)
		}
	}
	if len(k.blocks) >= kvHeldBlocks {
		return nil, errors.New("too many blocks wait to be fetched")
	}
	for block := range slices.Chunk(tokens, kvBlockTokens) {
		k.next++
		k.blocks[k.next] = kvBlock{tokens: slices.Clone(block), expires: now.Add(k.cfg.Timeout)}
		ids = append(ids, k.next)
	}
	return ids, nil
}

// takeBlocks returns all blocks that a decode server asks for, and drops them. If a block is missing, it returns none.
func (k *kvStore) takeBlocks(ask kvFetch, now time.Time) kvBlocks {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case ask.EngineID != k.engineID:
		return kvBlocks{Error: fmt.Sprintf("this is engine %s, not %s", k.engineID, ask.EngineID)}
	case ask.Compatibility != k.compatibility:
		return incompatibleCaches(k.compatibility, ask.Compatibility)
	}
	out := kvBlocks{Version: k.version}
	for _, id := range ask.BlockIDs {
		b, ok := k.blocks[id]
		if !ok || now.After(b.expires) {
			return kvBlocks{Error: fmt.Sprintf("block %d does not exist: it was fetched or dropped", id)}
		}
		out.Blocks = append(out.Blocks, b.tokens)
	}
	for _, id := range ask.BlockIDs {
		delete(k.blocks, id)
	}
	return out
}

// listenSideChannel opens the side channel.
func (k *kvStore) listenSideChannel(ctx context.Context) (l net.Listener, err error) {
	l, k.port, err = listenKV(ctx, k.cfg.Host, k.cfg.Port, "KV transfers", "VLLM_NIXL_SIDE_CHANNEL_PORT")
	return l, err
}

// serveBlocks answers decode servers until l is closed, and returns when the last exchange has
// ended.
func (k *kvStore) serveBlocks(l net.Listener) {
	serveKV(l, func(c net.Conn) {
		var ask kvFetch
		if readKV(c, &ask) && !k.loses() {
			_ = json.NewEncoder(c).Encode(k.takeBlocks(ask, time.Now()))
		}
	})
}

// fetchBlocks fetches the tokens of a prompt from the engine that prefilled it, and the version of that engine's server.
func (k *kvStore) fetchBlocks(ctx context.Context, from *kvParams) (tokens []string, version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, kvExchangeTimeout)
	defer cancel()
	ask := kvFetch{EngineID: from.RemoteEngineID, Compatibility: k.compatibility, BlockIDs: from.RemoteBlockIDs}
	return fetchKV(ctx, from.RemoteHost, from.RemotePort, ask, "prefill engine "+from.RemoteEngineID)
}

// takeKV fetches the prompt of a decode request from the prefill server, and sets the header with the version of that
// server. If the fetch fails, the request fails, because the decode server does not prefill the prompt again.
func (s *Server) takeKV(ctx context.Context, w http.ResponseWriter, req *sampling, p plan) *apiError {
	from := req.KVTransfer
	if from == nil || !from.DoRemotePrefill || s.kv == nil {
		return nil
	}
	fail := func(err error) *apiError {
		s.log.Error("KV transfer failed", "engine", from.RemoteEngineID, "host", from.RemoteHost, "port", from.RemotePort, "error", err)
		return transferError("kv_load_failed", "KV load failure", err)
	}
	if from.RemoteEngineID == "" || from.RemoteHost == "" || from.RemotePort == 0 || len(from.RemoteBlockIDs) == 0 {
		return badRequest("kv_transfer_params", "kv_transfer_params with do_remote_prefill needs remote_engine_id, remote_block_ids, remote_host and remote_port")
	}
	tokens, version, err := s.kv.fetchBlocks(ctx, from)
	setPrefillVersion(w, version)
	if err != nil {
		return fail(err)
	}
	if !slices.Equal(tokens, p.prompt) {
		return fail(fmt.Errorf("the blocks have another prompt: %d tokens, but this prompt has %d", len(tokens), len(p.prompt)))
	}
	return nil
}

// offerKV holds the prompt of a prefill request, and returns the parameters to fetch it.
func (s *Server) offerKV(req *sampling, p plan, id string) *kvParams {
	if req.KVTransfer == nil || !req.KVTransfer.DoRemoteDecode || s.kv == nil {
		return nil
	}
	ids, err := s.kv.holdTokens(p.prompt, time.Now())
	if err != nil {
		s.log.Error("KV blocks not held", "error", err)
		return nil
	}
	return &kvParams{
		DoRemotePrefill: true, RemoteEngineID: s.kv.engineID, RemoteRequestID: id, RemoteBlockIDs: ids,
		RemoteHost: s.kv.cfg.Host, RemotePort: s.kv.port, TPSize: s.cfg.Engine.Tensor,
	}
}

// kvTransferOf reads vLLM's environment variables of the side channel.
func kvTransferOf(p *parser, lookup func(string) (string, bool), connector, engineID string) (KVTransfer, error) {
	if connector != "NixlConnector" {
		return KVTransfer{}, nil
	}
	t := KVTransfer{Enabled: true, EngineID: engineID, Host: "localhost", Port: 5600}
	if host, ok := lookup("VLLM_NIXL_SIDE_CHANNEL_HOST"); ok && host != "" {
		t.Host = host
	}
	for name, set := range map[string]func(int){
		"VLLM_NIXL_SIDE_CHANNEL_PORT":     func(n int) { t.Port = n },
		"VLLM_NIXL_ABORT_REQUEST_TIMEOUT": func(n int) { t.Timeout = time.Duration(n) * time.Second },
	} {
		value, ok := lookup(name)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil || n < 0 || n > 65535 {
			return KVTransfer{}, p.valueError(fmt.Sprintf("ValueError: %s: invalid literal for int() with base 10: %s", name, quotePython(value)))
		}
		set(n)
	}
	return t, nil
}
