"""Readers and batches: samples by position."""

# The path of one sample (docs/data_engine.md has the whole figure; `·` runs on a decoder thread):
#
#   Batches.at(step) -> Reader.start -> DatasetReader.start (one per dataset)
#       -> DecodeScheduler.fill -> DecodePool.put
#       · CopyFramesTask.run   held frame -> write_picture -> PendingFrames.landed
#       · DecodeGopTask.run    Camera.decode -> FrameBuffer -> write_picture -> PendingFrames.landed
#   PendingBatch.result() <- PendingFrames.wait()
#   Feed -> loop -> update -> loss
