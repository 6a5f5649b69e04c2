package modelserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// RolePrefill, RoleDecode and RoleRouter are the roles of servers in a group. The servers find each other by the file of
// peers. It is read for each request, because it changes as servers of the group start and end:
//
//	client --/v1/--> router --the same--> decode --/internal/prefill--> prefill
//
// A decode server generates only from a prompt that a prefill server of its own version has prefilled. So requests fail
// in a test whose pair has different versions. If the file does not have the role prefill, the decode server prefills
// prompts itself.
const (
	RolePrefill = "prefill"
	RoleDecode  = "decode"
	RoleRouter  = "router"
)

// These headers name the servers that made an answer.
const (
	headerRole           = "X-Model-Role"
	headerGroup          = "X-Model-Group"
	headerPrefillVersion = "X-Prefill-Version"
)

const prefillPath = "/internal/prefill"

// peerDial is how long a connection to a peer may take to open. The host of a peer that has ended refuses at once.
const peerDial = 2 * time.Second

// part is the role of a server in its group.
type part struct {
	role  string
	group string
	file  string
	// next counts requests, so that requests are spread over the peers.
	next   atomic.Uint64
	client *http.Client
}

// newPart returns the part for a configuration, or nil if the configuration has no role.
func newPart(cfg *Config) *part {
	role := cfg.Role
	// An app's role may have one of these names by chance. So it counts only if the server has peers. Engines have
	// their own protocol between prefill and decode servers.
	if role == "" && cfg.Peers != "" && cmp.Or(cfg.Engine.Name, echo.name) == echo.name && slices.Contains([]string{RolePrefill, RoleDecode, RoleRouter}, cfg.AppRole) {
		role = cfg.AppRole
	}
	if role == "" {
		return nil
	}
	return &part{role: role, group: cfg.Group, file: cfg.Peers, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: peerDial}).DialContext,
	}}}
}

// peersOf returns the addresses of the ready servers of a role, beginning with the next server in turn. known is false if
// the group does not have the role.
func (p *part) peersOf(role string) (addresses []string, known bool, err error) {
	data, err := os.ReadFile(p.file)
	if err != nil {
		return nil, false, fmt.Errorf("read the peers: %w", err)
	}
	var file struct {
		Roles map[string][]string `json:"roles"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, false, fmt.Errorf("read the peers in %s: %w", p.file, err)
	}
	all, known := file.Roles[role]
	if len(all) == 0 {
		return nil, known, nil
	}
	first := int(p.next.Add(1) % uint64(len(all)))
	return slices.Concat(all[first:], all[:first]), true, nil
}

// setHeaders sets the headers of an answer that name the role and the group.
func (p *part) setHeaders(h http.Header) {
	h.Set(headerRole, p.role)
	if p.group != "" {
		h.Set(headerGroup, p.group)
	}
}

func noPeer(role string, err error) *apiError {
	e := &apiError{
		status: http.StatusServiceUnavailable, kind: "service_unavailable", code: "no_" + role,
		message: "no " + role + " server of the group is ready", retryAfter: time.Second,
	}
	if err != nil {
		e.message += ": " + err.Error()
	}
	return e
}

// promptCache is the answer of a prefill server: its version and the prompt.
type promptCache struct {
	Version string   `json:"version"`
	Tokens  []string `json:"tokens"`
}

// handlePrefill prefills a prompt for a decode server.
func (s *Server) handlePrefill(w http.ResponseWriter, r *http.Request) {
	var ask promptCache
	if problem := decodeBody(w, r, s.cfg.MaxBodyBytes, &ask); problem != nil {
		s.writeError(w, problem)
		return
	}
	if !s.isReady() {
		s.writeError(w, noPeer(RolePrefill, errors.New("it is loading")))
		return
	}
	if s.blockWhileHung(r.Context()) {
		panic(http.ErrAbortHandler)
	}
	if s.faults.drawError() {
		s.writeError(w, &apiError{status: http.StatusInternalServerError, kind: "server_error", code: "injected_error", message: "an injected fault failed this prefill"})
		return
	}
	s.metrics.recordPrefill(len(ask.Tokens))
	writeJSON(w, http.StatusOK, promptCache{Version: s.cfg.VersionLabel, Tokens: ask.Tokens})
}

// callPrefill calls a prefill server with the prompt of a request, if this is a decode server. It sets the header
// with the version of that prefill server.
func (s *Server) callPrefill(ctx context.Context, w http.ResponseWriter, p plan) *apiError {
	if s.part == nil || s.part.role != RoleDecode {
		return nil
	}
	addresses, known, err := s.part.peersOf(RolePrefill)
	if err != nil {
		return noPeer(RolePrefill, err)
	}
	if !known {
		return nil
	}
	body, err := json.Marshal(promptCache{Version: s.cfg.VersionLabel, Tokens: p.prompt})
	if err != nil {
		return noPeer(RolePrefill, err)
	}
	for _, address := range addresses {
		var answer promptCache
		if answer, err = s.part.askPrefill(ctx, address, body); err != nil {
			s.log.Warn("prefill failed", "address", address, "error", err)
			continue
		}
		setPrefillVersion(w, answer.Version)
		if answer.Version != s.cfg.VersionLabel || !slices.Equal(answer.Tokens, p.prompt) {
			why := fmt.Sprintf("the KV cache of the prefill server %s has version %q, and this decode server has version %q", address, answer.Version, s.cfg.VersionLabel)
			s.log.Error("mixed pair", "error", why)
			return &apiError{status: http.StatusConflict, kind: "server_error", code: codeIncompatible, message: why}
		}
		return nil
	}
	return noPeer(RolePrefill, err)
}

func (p *part) askPrefill(ctx context.Context, address string, body []byte) (out promptCache, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+prefillPath, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := p.client.Do(req)
	if err != nil {
		return out, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return out, fmt.Errorf("%s: %s", res.Status, bytes.TrimSpace(text))
	}
	return out, json.NewDecoder(res.Body).Decode(&out)
}

// forwardToDecode sends a request to a decode server of the group. It skips servers that refuse the connection.
func (s *Server) forwardToDecode(w http.ResponseWriter, r *http.Request) {
	if !s.isReady() {
		s.writeError(w, &apiError{status: http.StatusServiceUnavailable, kind: "service_unavailable", code: "model_loading", message: "the router is loading", retryAfter: time.Second})
		return
	}
	if s.blockWhileHung(r.Context()) {
		panic(http.ErrAbortHandler)
	}
	if s.faults.drawError() {
		s.writeError(w, &apiError{status: http.StatusInternalServerError, kind: "server_error", code: "injected_error", message: "an injected fault failed this request"})
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	if err != nil {
		s.writeError(w, badRequest("", "cannot read the body: %v", err))
		return
	}
	addresses, _, err := s.part.peersOf(RoleDecode)
	for _, address := range addresses {
		if err = s.part.passOn(w, r, address, body); err == nil {
			return
		}
		s.log.Warn("decode failed", "address", address, "error", err)
	}
	s.writeError(w, noPeer(RoleDecode, err))
}

// passOn proxies one request. It returns an error only if the client got no answer and another server may be tried.
func (p *part) passOn(w http.ResponseWriter, r *http.Request, address string, body []byte) (refused error) {
	proxy := &httputil.ReverseProxy{
		Transport:     p.client.Transport,
		FlushInterval: -1, // flush each token at once
		Rewrite: func(out *httputil.ProxyRequest) {
			out.SetURL(&url.URL{Scheme: "http", Host: address})
			out.Out.Host = out.In.Host
		},
		ModifyResponse: func(res *http.Response) error {
			// The headers of the server that answered replace those of the router.
			for _, name := range []string{"X-Model-Version", headerRole, headerGroup} {
				if res.Header.Get(name) != "" {
					w.Header().Del(name)
				}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var dial *net.OpError
			if errors.As(err, &dial) && dial.Op == "dial" && r.Context().Err() == nil {
				refused = err
				return
			}
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	again := r.Clone(r.Context())
	again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	proxy.ServeHTTP(w, again)
	return refused
}

// validatePart checks the settings of the role in a group.
func (c Config) validatePart() error {
	switch {
	case !slices.Contains([]string{"", RolePrefill, RoleDecode, RoleRouter}, c.Role):
		return fmt.Errorf("--role must be prefill, decode or router, not %q", c.Role)
	case c.Role != "" && c.Role != RolePrefill && c.Peers == "":
		return fmt.Errorf("--role %s needs the file of its peers: --peers, or WINDLASS_PEERS in the environment", c.Role)
	case c.Role != "" && cmp.Or(c.Engine.Name, echo.name) != echo.name:
		return fmt.Errorf("--role cannot be used with the command line of %s: use its own flag", c.Engine.Name)
	}
	return nil
}
