package rpc

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// newKeptConn returns a keeper, and both ends of a connection that it keeps. The client has sent the preface.
func newKeptConn(t *testing.T) (*keeper, *keptConn, net.Conn) {
	k := newKeeper()
	server, client := net.Pipe()
	c := &keptConn{Conn: server, keeper: k}
	c.lastRead.Store(time.Now().UnixNano())
	k.conns[c] = struct{}{}
	t.Cleanup(func() { _, _ = c.Close(), client.Close() })
	go func() { _, _ = client.Write([]byte(preface)) }()
	_, err := io.ReadFull(c, make([]byte, len(preface)))
	require.NoError(t, err)
	return k, c, client
}

func frame(size int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(size)<<8), make([]byte, frameHeader-4+size)...)
}

func TestKeeper_PingsBetweenFrames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, c, client := newKeptConn(t)
		data := frame(100)
		read := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(client)
			read <- all
		}()
		_, err := c.Write(data[:60])
		require.NoError(t, err)
		time.Sleep(pingAfter)
		k.pingAndClose(time.Now())
		synctest.Wait()
		_, err = c.Write(data[60:])
		require.NoError(t, err)
		_, err = c.Write(data)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.Equal(t, string(data)+string(pingFrame[:])+string(data), string(<-read))
	})
}

func TestKeeper_ClosesOnlyPeersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, c, client := newKeptConn(t)
		buffer := make([]byte, 1)
		ping := make([]byte, len(pingFrame))
		for range 3 { // the client only answers pings
			time.Sleep(pingAfter)
			k.pingAndClose(time.Now())
			_, err := io.ReadFull(client, ping)
			require.NoError(t, err)
			go func() { _, _ = client.Write([]byte{0}) }()
			_, err = c.Read(buffer)
			require.NoError(t, err)
			time.Sleep(pingTimeout)
			k.pingAndClose(time.Now())
		}
		time.Sleep(pingAfter - pingTimeout)
		k.pingAndClose(time.Now())
		_, err := io.ReadFull(client, ping)
		require.NoError(t, err)
		time.Sleep(pingTimeout)
		k.pingAndClose(time.Now())
		_, err = c.Read(buffer)
		require.ErrorIs(t, err, io.ErrClosedPipe, "a connection that does not answer is closed")
		require.Empty(t, k.conns)
	})
}

func TestKeeper_StalledPeerDelaysNoOther(t *testing.T) {
	t.Parallel()
	k, stuck, _ := newKeptConn(t)
	ended := make(chan error, 1)
	go func() {
		_, err := stuck.Write(frame(100))
		ended <- err
	}()
	require.Eventually(t, func() bool {
		if stuck.writing.TryLock() {
			stuck.writing.Unlock()
			return false
		}
		return true
	}, time.Minute, time.Millisecond)
	now := time.Now().Add(pingAfter)
	k.pingAndClose(now)
	k.pingAndClose(now.Add(pingTimeout))
	require.ErrorIs(t, <-ended, io.ErrClosedPipe)
	require.Empty(t, k.conns)
}

func TestKeeper_LeavesHTTP1Alone(t *testing.T) {
	t.Parallel()
	f := setup(t, settings{})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.url+"/nothing", http.NoBody)
		require.NoError(t, err)
		resp, err := (&http.Client{Transport: transport}).Do(req)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "HTTP/1.1", resp.Proto)
	}
}

func TestFrames_AreFoundInPartsOfAnySize(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var all []byte
		ends := map[int]bool{0: true}
		for _, size := range rapid.SliceOfN(rapid.IntRange(0, 70_000), 1, 5).Draw(t, "sizes") {
			all = append(all, frame(size)...)
			ends[len(all)] = true
		}
		var f frameTracker
		for at := 0; at < len(all); {
			n := rapid.IntRange(1, len(all)-at).Draw(t, "part")
			f.addWritten(all[at : at+n])
			at += n
			require.Equal(t, ends[at], f.isBetweenFrames())
		}
	})
}
