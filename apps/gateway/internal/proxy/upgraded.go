package proxy

import (
	"io"
	"net"
	"sync"
	"time"
)

// halfOpen is how long a connection that switched protocols may be silent after one side has ended its half.
// Data under way arrives in this time. After it, a side that is gone no longer keeps the other side open.
const halfOpen = 5 * time.Second

// upgraded is the instance's side of a connection that switched protocols, such as a websocket. It ends both sides
// if neither side has sent a byte for the limit.
type upgraded struct {
	io.ReadWriteCloser

	body *responseBody

	mu    sync.Mutex
	limit time.Duration
	idle  *time.Timer
	ended bool
}

func newUpgraded(rw io.ReadWriteCloser, body *responseBody, limit time.Duration) *upgraded {
	u := &upgraded{ReadWriteCloser: rw, body: body, limit: limit}
	u.idle = time.AfterFunc(limit, u.cutBoth)
	return u
}

// cutBoth closes both sides, which ends the goroutines that copy between them.
func (u *upgraded) cutBoth() {
	_ = u.ReadWriteCloser.Close() // an error changes nothing, because the connection ends here
	if client := u.body.x.hijacked.Load(); client != nil {
		_ = (*client).Close()
	}
}

// noteBytes is called when bytes went in one direction. half is whether one side has ended.
func (u *upgraded) noteBytes(half bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if half {
		u.limit = min(u.limit, halfOpen)
	}
	if !u.ended {
		u.idle.Reset(u.limit)
	}
}

func (u *upgraded) Read(p []byte) (int, error) {
	n, err := u.ReadWriteCloser.Read(p)
	u.noteBytes(err != nil)
	return n, err
}

func (u *upgraded) Write(p []byte) (int, error) {
	n, err := u.ReadWriteCloser.Write(p)
	u.noteBytes(err != nil)
	return n, err
}

// CloseWrite is called when the client has ended its side.
func (u *upgraded) CloseWrite() error {
	u.noteBytes(true)
	if half, ok := u.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (u *upgraded) Close() error {
	u.mu.Lock()
	u.ended = true
	u.idle.Stop()
	u.mu.Unlock()
	err := u.ReadWriteCloser.Close()
	u.body.cancel(nil)
	u.body.at.End()
	return err
}

// noteHijack stores the client's side of a connection that switches protocols.
func (x *exchange) noteHijack(conn net.Conn) { x.hijacked.Store(&conn) }
