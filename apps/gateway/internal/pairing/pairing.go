// Package pairing makes the two requests, called legs, by which a pair of instances answers one request for a
// completion: one instance prefills the prompt, and the other one decodes. It is pure.
//
//	NIXL    vLLM with the NixlConnector: one leg after the other, as vLLM's toy_proxy_server.py does
//	        prefill   the request for one token, not streamed, with kv_transfer_params {do_remote_decode: true, ...}
//	        decode    the request with the kv_transfer_params of the answer
//	SGLang  with --disaggregation-mode: both legs at once, as SGLang's mini_lb.py does
//	        both      the request with bootstrap_host, bootstrap_port and bootstrap_room
//
// Only the gateway may set these fields, because an engine connects to the hosts in them. All bodies that this
// package makes leave out the values that the client set. A request that it cannot read (Request.Unfit) may still
// have them.
package pairing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
)

// Engine is the engine of a pair.
type Engine int

const (
	// Unknown is an engine that only a later release knows.
	Unknown Engine = iota
	// NIXL is vLLM with the NixlConnector.
	NIXL
	// SGLang is SGLang with --disaggregation-mode.
	SGLang
)

// String returns the name of the engine in app files.
func (e Engine) String() string { return [...]string{"unknown", "nixl", "sglang"}[e] }

// Policy is how the requests of a deployment are paired.
type Policy struct {
	Engine Engine
	// MinPromptBytes is the length of the shortest prompt, as it is written in the request, that is prefilled by
	// another instance. 0: all prompts are. It has an effect with NIXL only.
	MinPromptBytes int
}

// MaxBody is the largest body, in bytes, of a request that is paired, because both legs are made from it. Prompts of a
// million tokens and most images fit.
const MaxBody = 8 << 20

// Takes reports whether a request with the method and the path may be paired.
func Takes(method, path string) bool {
	return method == "POST" && (strings.HasSuffix(path, "/v1/completions") || strings.HasSuffix(path, "/v1/chat/completions") || path == "/generate")
}

// Reason is why a request is not paired. Empty: it is.
type Reason string

const (
	// Path: the request asks for no completion.
	Path Reason = "path"
	// Short: the prompt is shorter than MinPromptBytes.
	Short Reason = "short"
	// Large: the body is larger than MaxBody.
	Large Reason = "large"
	// NotJSON: the body is not a JSON object.
	NotJSON Reason = "not_json"
	// Several: the request asks for several answers, which vLLM cannot make from one transfer.
	Several Reason = "several"
	// NoEngine: the engine is Unknown.
	NoEngine Reason = "engine"
	// NoPair: no pair is in service, and vLLM's decode server prefills the prompt itself.
	NoPair Reason = "no_pair"
	// NoPrefill: vLLM's prefill server refused the request, so the decode server decides about it.
	NoPrefill Reason = "refused"
)

// Request is a request that may be paired.
type Request struct {
	// Unfit is why the request cannot go to a pair of any engine: Path, Large or NotJSON.
	Unfit  Reason
	fields map[string]json.RawMessage
	prompt int // bytes of the prompt
	// batch is the number of rooms that the request needs in a list, and -1 if it needs one without a list. several is
	// whether the request asks for several answers.
	batch   int
	several bool
}

// gatewayFields are the fields of requests that only the gateway may set.
var gatewayFields = []string{"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"}

// Read reads the body of a request.
func Read(body []byte) *Request {
	r := &Request{batch: -1}
	if json.Unmarshal(body, &r.fields) != nil || r.fields == nil {
		return &Request{Unfit: NotJSON}
	}
	for _, name := range []string{"prompt", "messages", "text", "input_ids"} {
		value, ok := r.fields[name]
		if !ok {
			continue
		}
		r.prompt += len(bytes.TrimSpace(value))
		if name == "messages" {
			continue
		}
		if n := batchOf(value); n > 1 || name != "prompt" { // with a list of one prompt, SGLang takes one room, too
			r.batch, r.several = max(r.batch, n), r.several || n > 1
		}
	}
	for _, name := range []string{"n", "best_of"} {
		var n json.Number
		if value, ok := r.fields[name]; ok && json.Unmarshal(value, &n) == nil && n != "" && n != "1" {
			r.several = true
		}
	}
	return r
}

// batchOf returns the number of prompts in a list of prompts. A text and a list of token numbers are one prompt without
// a list: -1. It reads one item after the other, because a list of all items takes many times the memory of the body.
func batchOf(value json.RawMessage) int {
	if value = bytes.TrimSpace(value); len(value) == 0 || value[0] != '[' {
		return -1
	}
	dec := json.NewDecoder(bytes.NewReader(value))
	if _, err := dec.Token(); err != nil {
		return -1
	}
	var item json.RawMessage
	n := 0
	for ; dec.More(); n++ {
		if dec.Decode(&item) != nil || n == 0 && item[0] != '"' && item[0] != '[' {
			return -1
		}
	}
	if n == 0 {
		return -1
	}
	return n
}

// HasGatewayFields reports whether a client set fields that only the gateway may set.
func (r *Request) HasGatewayFields() bool {
	for _, name := range gatewayFields {
		if _, ok := r.fields[name]; ok {
			return true
		}
	}
	return false
}

// WhyAlone returns why a request goes to a decode server alone under the policy. Empty: it goes to a pair.
func (p Policy) WhyAlone(r *Request) Reason {
	switch {
	case r.Unfit != "":
		return r.Unfit
	case p.Engine == Unknown:
		return NoEngine
	case p.Engine == NIXL && r.several:
		return Several
	case p.Engine == NIXL && r.prompt < p.MinPromptBytes:
		return Short
	}
	return ""
}

// Refuses reports whether the gateway answers a request itself, because it knows no engine for the pair or cannot
// read the body. An engine may read such a body in another way, and then obey fields of the client that only the
// gateway may set.
func (p Policy) Refuses(why Reason) bool {
	return p.Engine == Unknown && why != Path || why == Large || why == NotJSON
}

// Alone returns the body for a decode server alone.
func (r *Request) Alone() []byte { return r.withFields(nil) }

// PrefillNIXL returns the body for vLLM's prefill server.
func (r *Request) PrefillNIXL() []byte {
	change := map[string]any{
		"stream": false, "max_tokens": 1, "min_tokens": nil, "min_completion_tokens": nil, "stream_options": nil,
		"kv_transfer_params": map[string]any{
			"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": nil, "remote_block_ids": nil, "remote_host": nil, "remote_port": nil,
		},
	}
	if _, ok := r.fields["max_completion_tokens"]; ok {
		change["max_completion_tokens"] = 1
	}
	return r.withFields(change)
}

// ErrNoParams is the error for an answer of a prefill server that is not a JSON object.
var ErrNoParams = errors.New("the answer of the prefill server is not a JSON object")

// DecodeNIXL returns the body for vLLM's decode server after the prefill server's answer. If the answer has no
// parameters, for example because the prefill server has no connector, the decode server prefills the prompt itself.
func (r *Request) DecodeNIXL(answer []byte) ([]byte, error) {
	var got struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoParams, err)
	}
	if len(got.Params) == 0 || string(got.Params) == "null" {
		return r.Alone(), nil
	}
	return r.withFields(map[string]any{"kv_transfer_params": got.Params}), nil
}

// SGLang returns the bodies for both servers. address is the address of the prefill server, and port is its bootstrap
// port. 0: the decode server uses SGLang's default. room returns a new room number, from 0 to 2^63-1. The prefill leg
// is not streamed, so that the status of its answer says whether the prompt was transferred.
func (r *Request) SGLang(address string, port int, room func() int64) (prefill, decode []byte) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	var bootstrapPort any
	if port != 0 {
		bootstrapPort = port
	}
	change := map[string]any{"bootstrap_host": host, "bootstrap_port": bootstrapPort, "bootstrap_room": room()}
	if r.batch >= 0 {
		hosts, ports, rooms := make([]any, r.batch), make([]any, r.batch), make([]any, r.batch)
		for i := range r.batch {
			hosts[i], ports[i], rooms[i] = host, bootstrapPort, room()
		}
		change = map[string]any{"bootstrap_host": hosts, "bootstrap_port": ports, "bootstrap_room": rooms}
	}
	decode = r.withFields(change)
	change["stream"], change["stream_options"] = false, nil
	return r.withFields(change), decode
}

// withFields returns the request with fields set. Nil drops a field, except in bootstrap_port. Other fields keep their text.
func (r *Request) withFields(set map[string]any) []byte {
	out := make(map[string]json.RawMessage, len(r.fields)+len(set))
	maps.Copy(out, r.fields)
	for _, name := range gatewayFields {
		delete(out, name)
	}
	for name, value := range set {
		if value == nil && name != "bootstrap_port" {
			delete(out, name)
			continue
		}
		data, err := json.Marshal(value)
		if err != nil {
			continue // cannot happen: the values are numbers, texts and JSON
		}
		out[name] = data
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil // cannot happen: the fields were read from JSON
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
