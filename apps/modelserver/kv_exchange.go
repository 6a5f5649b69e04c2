package modelserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// There are two ways to send a KV cache to another server (KVTransfer, Bootstrap). In both, the servers exchange two
// JSON messages on a separate connection: the decode server's request, and an answer with blocks or an error.

// These limit the time of an exchange and the bytes of a message.
const (
	kvExchangeTimeout = 10 * time.Second
	kvMessageLimit    = 64 << 20
)

// kvBlocks is the answer to a decode server.
type kvBlocks struct {
	Error string `json:"error,omitempty"`
	// Incompatible means that the caches have different layouts, so that no retry can succeed.
	Incompatible bool       `json:"incompatible,omitempty"`
	Blocks       [][]string `json:"blocks,omitempty"`
	// Version is the version label of the prefill server.
	Version string `json:"version,omitempty"`
}

// incompatibleCaches returns the answer to a decode server whose cache has another layout.
func incompatibleCaches(prefill, decode string) kvBlocks {
	return kvBlocks{Incompatible: true, Error: fmt.Sprintf("the KV caches have different layouts: prefill has %s, decode has %s", prefill, decode)}
}

// errIncompatible is the error of a transfer between servers whose caches have different layouts.
// The text has the code, because errors of engines have no code of their own.
var errIncompatible = errors.New(codeIncompatible + ": mixed pair")

// errorOf returns the error in the answer, or nil.
func (k kvBlocks) errorOf() error {
	switch {
	case k.Error == "":
		return nil
	case k.Incompatible:
		return fmt.Errorf("%w: %s", errIncompatible, k.Error)
	}
	return errors.New(k.Error)
}

// transferError returns the answer to a request whose KV cache was not transferred. A pair of different versions is a
// mistake of the caller, who chose the servers: 409 shows it to tests.
func transferError(code, message string, err error) *apiError {
	e := &apiError{status: http.StatusInternalServerError, kind: "server_error", code: code, message: message + ": " + err.Error()}
	if errors.Is(err, errIncompatible) {
		e.status, e.code = http.StatusConflict, codeIncompatible
	}
	return e
}

// errTransferLost is the error of a transfer that the fault LoseTransfers stopped.
var errTransferLost = errors.New("an injected fault lost the transfer")

func (s *Server) losesTransfers() bool {
	faults, _, _ := s.faults.currentFaults()
	return faults.LoseTransfers
}

// setPrefillVersion names the version of the prefill server in the answer of a decode server. Empty: it is not known.
func setPrefillVersion(w http.ResponseWriter, version string) {
	if version != "" {
		w.Header().Set(headerPrefillVersion, version)
	}
}

// codeIncompatible is the code of the error for a pair of different versions.
const codeIncompatible = "kv_incompatible"

// listenKV opens the port for decode servers, and returns its listener and its number. callers and flag are for the
// error.
func listenKV(ctx context.Context, host string, port int, callers, flag string) (net.Listener, int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, 0, fmt.Errorf("cannot listen for %s (choose another %s): %w", callers, flag, err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		port = a.Port
	}
	return l, port, nil
}

// serveKV runs exchange for each connection until l is closed, and returns when the last exchange has
// ended.
func serveKV(l net.Listener, exchange func(net.Conn)) {
	var exchanges sync.WaitGroup
	defer exchanges.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		exchanges.Go(func() {
			defer c.Close()
			exchange(c)
		})
	}
}

// readKV reads the request of a decode server into ask, and reports whether a valid request came in time.
func readKV(c net.Conn, ask any) bool {
	_ = c.SetDeadline(time.Now().Add(kvExchangeTimeout))
	return json.NewDecoder(io.LimitReader(c, kvMessageLimit)).Decode(ask) == nil
}

// fetchKV sends ask to a prefill server, and returns the tokens of the blocks in its answer, and the server's version.
// server is the name of the prefill server in errors.
func fetchKV(ctx context.Context, host string, port int, ask any, server string) (tokens []string, version string, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, "", err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := json.NewEncoder(c).Encode(ask); err != nil {
		return nil, "", err
	}
	var got kvBlocks
	if err := json.NewDecoder(io.LimitReader(c, kvMessageLimit)).Decode(&got); err != nil {
		return nil, "", fmt.Errorf("%s closed the connection without an answer: %w", server, err)
	}
	return slices.Concat(got.Blocks...), got.Version, got.errorOf()
}
