package proxy

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway/internal/health"
)

// fakeDestination is the destination of a connection in a test.
type fakeDestination struct{ ended bool }

func (*fakeDestination) resolveTarget(*transport, *http.Request) (scheme, host string, through *http.Transport) {
	return "", "", nil
}
func (*fakeDestination) RecordOutcome(health.Outcome) {}
func (*fakeDestination) RecordStall(time.Duration)    {}
func (p *fakeDestination) End()                       { p.ended = true }

// opened returns a connection that switched protocols, and the ends that the client and the instance hold.
func opened(limit time.Duration) (u *upgraded, client, instance net.Conn, at *fakeDestination) {
	ours, client := net.Pipe()
	theirs, instance := net.Pipe()
	x, at := &exchange{}, &fakeDestination{}
	x.noteHijack(ours)
	return newUpgraded(theirs, &responseBody{x: x, at: at, cancel: func(error) {}}, limit), client, instance, at
}

func TestUpgraded_Ends(t *testing.T) {
	const limit = 10 * time.Minute
	ended := func(t *testing.T, ends ...net.Conn) time.Duration {
		t.Helper()
		begun := time.Now()
		for _, end := range ends {
			_, err := end.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		return time.Since(begun)
	}
	for name, test := range map[string]func(t *testing.T, u *upgraded, client, instance net.Conn){
		"when both are silent": func(t *testing.T, _ *upgraded, client, instance net.Conn) {
			require.Equal(t, limit, ended(t, client, instance))
		},
		"later if one side sends bytes": func(t *testing.T, u *upgraded, client, instance net.Conn) {
			go func() {
				time.Sleep(limit / 2)
				_, _ = instance.Write([]byte("x"))
			}()
			_, err := u.Read(make([]byte, 1))
			require.NoError(t, err)
			require.Equal(t, limit, ended(t, client, instance))
		},
		"soon after the client ends its half": func(t *testing.T, u *upgraded, client, instance net.Conn) {
			require.NoError(t, u.CloseWrite())
			require.Equal(t, halfOpen, ended(t, client, instance))
		},
		"soon after the instance ends its half": func(t *testing.T, u *upgraded, client, instance net.Conn) {
			require.NoError(t, instance.Close())
			_, err := u.Read(make([]byte, 1))
			require.Error(t, err)
			require.Equal(t, halfOpen, ended(t, client))
		},
		"at once when it is closed": func(t *testing.T, u *upgraded, _, instance net.Conn) {
			require.NoError(t, u.Close())
			require.Zero(t, ended(t, instance))
			u.noteBytes(false)
			time.Sleep(2 * limit)
			require.True(t, u.body.at.(*fakeDestination).ended)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u, client, instance, _ := opened(limit)
				test(t, u, client, instance)
				_ = u.Close()
				_ = client.Close()
			})
		})
	}
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := make(chan time.Time, 1)
		begun := time.Now()
		w := startWatch(time.Second, func() { late <- time.Now() })
		time.Sleep(900 * time.Millisecond)
		w.pauseWatch()
		time.Sleep(time.Hour) // the watch waits for the client, so this hour does not count
		require.Empty(t, late)
		w.resumeWatch()
		require.Equal(t, begun.Add(900*time.Millisecond+time.Hour+time.Second), <-late)
		require.Equal(t, time.Second, w.endWatch())
		w.resumeWatch() // a read that ends after the answer began
		time.Sleep(time.Hour)
		require.Empty(t, late)

		w = startWatch(time.Second, func() { late <- time.Now() })
		w.pauseWatch()
		time.Sleep(time.Hour)
		require.Zero(t, w.endWatch(), "the watch waited for the client")
	})
}
