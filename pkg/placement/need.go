package placement

import "time"

// activeFor is how long a model that is OnRequest needs room after its last request. It is long compared to
// Eviction.Keep, so that servers do not come and go with pauses between requests.
const activeFor = 10 * time.Minute

// Room is an amount of room for models on the servers of an app.
type Room struct {
	Memory int64
	Models int
}

// App identifies an app by its name and scope.
type App struct{ Scope, Name string }

// Needs returns the room that models need of each app's servers, if decisions is the result of Place for the same
// arguments. A replica needs room of the app that has it, and a replica without a server needs room of the app whose
// server is nearest to a fit. Models that are OnRequest need room only while they are in use.
func Needs(now time.Time, servers []Server, models []Model, decisions []Decision) map[App]Room {
	at := make(map[Key]*Server, len(servers))
	needs := map[App]Room{}
	for i := range servers {
		at[servers[i].Key()] = &servers[i]
		needs[App{servers[i].Scope, servers[i].App}] = Room{}
	}
	of := make(map[string]*Model, len(models))
	for i := range models {
		of[models[i].ID] = &models[i]
	}
	for _, d := range decisions {
		m := of[d.Model]
		if m.OnRequest && !m.isRequested() && !m.Busy && now.Sub(m.LastUsed) >= activeFor {
			continue
		}
		needsRoom := func(k Key, replicas int) {
			app := App{at[k].Scope, k.App}
			r := needs[app]
			for range replicas {
				r.Memory, r.Models = add(r.Memory, max(0, m.Memory)), r.Models+1
			}
			needs[app] = r
		}
		for _, k := range d.Servers {
			needsRoom(k, 1)
		}
		nearest := at[d.Refused.Nearest]
		if reason := d.Refused.NearestReason; nearest != nil && (reason == NoSlot || reason == NoMemory) && m.Memory <= memoryLimit(nearest.Memory, nearest.Overcommit) {
			needsRoom(d.Refused.Nearest, d.Short)
		}
	}
	return needs
}
