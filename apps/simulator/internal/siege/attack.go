package siege

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/windlass-run/windlass/apps/simulator/internal/child"
)

const (
	// AttackCommand makes the simulator's binary an attacker: KIND COUNT ADDRESS ADDRESS-OF-TLS.
	AttackCommand = "run-attack"

	// ready is the line that an attack writes when it has begun.
	ready = "ready"
	// addresses is the number of the attacker's loopback addresses. Each opens a part of the connections.
	addresses = 16
	// dialers bounds the connections that open at the same time, so that no queue of the system overflows.
	dialers = 32
	// streams2 and streams3 are the numbers of requests on one connection of HTTP/2 and of HTTP/3.
	streams2, streams3 = 500, 99
	// retryPause is the pause after the gateway ended or refused a connection or a request.
	retryPause = 5 * time.Second
	// poisonPause is the pause between poisonous requests.
	poisonPause = 500 * time.Millisecond
)

// Kinds are the kinds of attacks, in the order in which they run.
var Kinds = []string{"idle", "uploads", "poison", "watches", "half", "held"}

// attacker is a running attack.
type attacker struct {
	address, secure string
	// begunCount is how many of the count connections or requests have begun at least once.
	begunCount atomic.Int64
	count      int64
	once       sync.Once
}

// Attack runs an attack until its standard input ends.
func Attack(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("%s KIND COUNT ADDRESS ADDRESS-OF-TLS: %d arguments", AttackCommand, len(args))
	}
	count, err := strconv.Atoi(args[1])
	if err != nil || count < 1 {
		return fmt.Errorf("%s: the count %q is no number above 0", AttackCommand, args[1])
	}
	ctx, cancel, err := child.Become(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	a := &attacker{address: args[2], secure: args[3], count: int64(count)}
	// Many goroutines call attackOnce repeatedly until the end. Each goroutine stands for weight of the count
	// connections or requests.
	attackOnce, weight := map[string]func(context.Context, int) error{
		"idle": a.holdIdle, "uploads": a.uploadSlowly, "poison": a.sendPoisoned, "watches": a.readStreams, "half": a.sendHalfRequests, "held": a.sendHeldRequests,
	}[args[0]], map[string]int{"watches": streams2, "half": streams3}[args[0]]
	if attackOnce == nil {
		return fmt.Errorf("%s: %q: use one of %s", AttackCommand, args[0], strings.Join(Kinds, ", "))
	}
	weight = min(max(weight, 1), count)
	slots := make(chan struct{}, dialers)
	var all sync.WaitGroup
	for i := range (count + weight - 1) / weight {
		all.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				if first {
					slots <- struct{}{}
				}
				done := sync.OnceFunc(func() {
					a.countBegun(int64(weight))
					<-slots
				})
				if !first {
					done = func() {}
				}
				_ = attackOnce(context.WithValue(ctx, begunKey{}, done), i) // the attack goes on, whatever the gateway does
				done()
				select {
				case <-ctx.Done():
				case <-time.After(retryPause):
				}
			}
		})
	}
	all.Wait()
	return nil
}

type begunKey struct{}

// noteBegun is called when one connection or request of the attack has begun.
func noteBegun(ctx context.Context) { ctx.Value(begunKey{}).(func())() }

func (a *attacker) countBegun(n int64) {
	if a.begunCount.Add(n) >= a.count {
		a.once.Do(func() { _, _ = os.Stdout.WriteString(ready + "\n") })
	}
}

func sourceIP(i int) net.IP { return net.IPv4(127, 0, 1, byte(1+i%addresses)) }

func (a *attacker) dial(ctx context.Context, i int) (net.Conn, func(), error) {
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: sourceIP(i)}, Timeout: startTimeout}).DialContext(ctx, "tcp", a.address)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	return conn, func() { stop(); _ = conn.Close() }, nil
}

// holdIdle holds a connection without a request.
func (a *attacker) holdIdle(ctx context.Context, i int) error {
	conn, end, err := a.dial(ctx, i)
	if err != nil {
		return err
	}
	defer end()
	noteBegun(ctx)
	_, err = conn.Read(make([]byte, 1))
	return err
}

// uploadSlowly sends a byte from time to time.
func (a *attacker) uploadSlowly(ctx context.Context, i int) error {
	conn, end, err := a.dial(ctx, i)
	if err != nil {
		return err
	}
	defer end()
	if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n", AttackedHost); err != nil {
		return err
	}
	noteBegun(ctx)
	for tick := time.Tick(500 * time.Millisecond); ; <-tick {
		if _, err := io.WriteString(conn, "1\r\nx\r\n"); err != nil {
			return err
		}
	}
}

// sendPoisoned sends requests that get poisonous answers.
func (a *attacker) sendPoisoned(ctx context.Context, i int) error {
	return a.sendRequests(ctx, i, PoisonHost, "/poison", poisonPause)
}

// sendHeldRequests sends requests for an app at zero, and repeats a request that the gateway refuses.
func (a *attacker) sendHeldRequests(ctx context.Context, i int) error {
	return a.sendRequests(ctx, i, ZeroHost, "/", retryPause)
}

// sendRequests makes one request after the other on a connection, with pauses of about pause.
func (a *attacker) sendRequests(ctx context.Context, i int, host, path string, pause time.Duration) error {
	conn, end, err := a.dial(ctx, i)
	if err != nil {
		return err
	}
	defer end()
	in := bufio.NewReader(conn)
	for {
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host); err != nil {
			return err
		}
		noteBegun(ctx)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		_ = res.Body.Close() // it was read
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// trustingConfig returns the attacker's TLS configuration, which trusts every certificate.
func trustingConfig(host string, protocol string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, ServerName: host, NextProtos: []string{protocol}, MinVersion: tls.VersionTLS13} //nolint:gosec // see above
}

// readStreams reads streams that do not end, many on each connection of HTTP/2.
func (a *attacker) readStreams(ctx context.Context, i int) error {
	transport := &http.Transport{TLSClientConfig: trustingConfig(AttackedHost, "h2"), Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: sourceIP(i)}, Timeout: startTimeout}).DialContext(ctx, network, address)
	}}
	transport.Protocols.SetHTTP2(true)
	defer transport.CloseIdleConnections()
	var open atomic.Int64
	var all sync.WaitGroup
	defer all.Wait()
	n := min(streams2, int(a.count))
	for range n {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.secure+"/stream", http.NoBody)
			if err != nil {
				return
			}
			req.Host = AttackedHost
			res, err := transport.RoundTrip(req)
			if open.Add(1) == int64(n) {
				noteBegun(ctx)
			}
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, res.Body) // until the end
			_ = res.Body.Close()                 // it has ended
		})
	}
	return nil
}

// sendHalfRequests sends one whole request on a connection of HTTP/3, and then as many half requests as allowed.
func (a *attacker) sendHalfRequests(ctx context.Context, i int) error {
	to, err := net.ResolveUDPAddr("udp", a.secure)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: sourceIP(i)})
	if err != nil {
		return err
	}
	transport := &quic.Transport{Conn: socket}
	defer func() { _ = transport.Close(); _ = socket.Close() }()
	conn, err := transport.Dial(ctx, to, trustingConfig(AttackedHost, http3.NextProtoH3), &quic.Config{KeepAlivePeriod: time.Second, MaxIdleTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	end := func() { _ = conn.CloseWithError(quic.ApplicationErrorCode(http3.ErrCodeNoError), "") }
	defer end()
	stop := context.AfterFunc(ctx, end)
	defer stop()
	client := (&http3.Transport{}).NewClientConn(conn)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+AttackedHost+"/", http.NoBody)
	if err != nil {
		return err
	}
	res, err := client.RoundTrip(req)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	_ = res.Body.Close()                                              // it was read
	part := append([]byte{0x01, 0x7f, 0xff}, make([]byte, 16<<10)...) // a HEADERS frame of 16,383 bytes, without its last byte
	var all, written sync.WaitGroup
	defer all.Wait()
	defer end()
	for range streams3 {
		written.Add(1)
		all.Go(func() {
			first := sync.OnceFunc(written.Done)
			defer first()
			for { // the gateway resets each stream after a time
				stream, err := conn.OpenStreamSync(ctx)
				if err != nil {
					return // the connection has ended
				}
				_, _ = stream.Write(part[:16<<10])
				first()
				_, _ = stream.Read(make([]byte, 1))
				stream.CancelWrite(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
				stream.CancelRead(quic.StreamErrorCode(http3.ErrCodeRequestCanceled))
				select {
				case <-conn.Context().Done():
					return
				case <-time.After(retryPause/2 + rand.N(retryPause)): // not all at once
				}
			}
		})
	}
	written.Wait()
	noteBegun(ctx)
	<-conn.Context().Done()
	return context.Cause(conn.Context())
}
