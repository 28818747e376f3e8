import time, pytest
from tests.testing import fixture_handlers
from tidewheel.testing import stack, services
def timed(cls, name):
    f=getattr(cls,name)
    def g(*a,**k):
        t=time.perf_counter()
        try: return f(*a,**k)
        finally: print(f"{cls.__name__}.{name} {1000*(time.perf_counter()-t):.0f} ms", flush=True)
    setattr(cls,name,g)
for n in ("schedule","publish","take_in","execute","rest","close"): timed(services.Services,n)
timed(services._Executing,"close"); timed(services._Executing,"__init__")
timed(stack.Tidewheel,"__init__"); timed(stack.Tidewheel,"close"); timed(stack.Tidewheel,"_round")
from tidewheel.relay.loop import Relay; timed(Relay,"leave"); timed(Relay,"__init__")
from tidewheel.scheduler.loop import Scheduler; timed(Scheduler,"close")
from tidewheel.testing.databases import Template; timed(Template,"give_back")
from tidewheel.executor.loop import Executor
for n in ("_drain",):
    f=getattr(Executor,n)
    async def g(self,f=f):
        t=time.perf_counter(); 
        try: return await f(self)
        finally: print(f"Executor._drain {1000*(time.perf_counter()-t):.0f}",flush=True)
    setattr(Executor,n,g)
def test_a(tidewheel):
    tidewheel.submit({"key":"job","schedule":"manual","target":"testing.echo"})
    tidewheel.trigger("job")
    t=time.perf_counter(); tidewheel.drain(); print("drain", time.perf_counter()-t)
    tidewheel.trigger("job")
    t=time.perf_counter(); tidewheel.drain(); print("drain2", time.perf_counter()-t)
def test_b(tidewheel):
    tidewheel.submit({"key":"job","schedule":"manual","target":"testing.echo"})
    tidewheel.trigger("job")
    t=time.perf_counter(); tidewheel.drain(); print("drain", time.perf_counter()-t)
    tidewheel.trigger("job")
    t=time.perf_counter(); tidewheel.drain(); print("drain2", time.perf_counter()-t)
